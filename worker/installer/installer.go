package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpupool/schema"
)

// session is one install.
type session struct {
	cfg  Config
	http *http.Client
	log  *slog.Logger

	told     time.Time // when progress was last reported
	toldStep string
}

// Install puts the image on the disk and tells the platform how it goes. When it returns nil the disk is bootable, was
// read back, and the platform knows: the machine is to be restarted. Any error was reported, and printed.
func Install(ctx context.Context, cfg Config, log *slog.Logger) error {
	return reported(ctx, cfg, log, (*session).install)
}

// reported does f in a session of its own, and tells the platform where it fails.
func reported(ctx context.Context, cfg Config, log *slog.Logger, f func(*session, context.Context) error) error {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.Proxy, tr.DisableCompression, tr.ResponseHeaderTimeout = nil, true, 30*time.Second
	s := &session{cfg: cfg, http: &http.Client{Transport: tr}, log: log}
	defer s.http.CloseIdleConnections()
	err := f(s, ctx)
	if err == nil {
		return nil
	}
	err = errors.New(redact(err.Error()))
	if rerr := s.report(ctx, schema.InstallReport{State: schema.InstallFailed, Text: err.Error()}); rerr != nil {
		err = fmt.Errorf("%w (and it could not be reported: %s)", err, redact(rerr.Error()))
	}
	return err
}

func (s *session) install(ctx context.Context) error {
	m, err := s.manifest(ctx)
	if err != nil {
		return err
	}
	d, err := s.choose(ctx, m)
	if err != nil {
		return err
	}
	s.log.Info("installs", "disk", d.String(), "image", m.Image, "bytes", m.Size)
	if err := s.report(ctx, schema.InstallReport{State: schema.InstallRunning, Text: "installer runs; writes " + d.String()}); err != nil {
		return err
	}
	disk, err := claim(d)
	if err != nil {
		return fmt.Errorf("open %s: %w", d, err)
	}
	defer disk.Close()
	first, err := s.write(ctx, disk, d, m)
	if err != nil {
		return err
	}
	if err := s.verify(ctx, disk, d, m, first); err != nil {
		return err
	}
	g, err := readGPT(first, d.Sector)
	if err != nil {
		return err
	}
	p, err := g.root(m.RootPartition)
	if err != nil {
		return err
	}
	g.grow(d.Bytes, p.number)
	if p, err = g.root(p.number); err != nil {
		return err
	}
	if err := s.personalise(ctx, disk, d, m, p); err != nil {
		return err
	}
	if err := seal(disk, d, g, first); err != nil {
		return err
	}
	s.log.Info("installed", "disk", d.String())
	return s.report(ctx, schema.InstallReport{State: schema.InstallDone, Text: "image written to " + d.String() + ", read back and found right; restarts"})
}

// claim opens the disk. The kernel refuses it to O_EXCL while something of it is in use; what is held so can't have a
// partition mounted later, so it is opened again.
func claim(d Disk) (*os.File, error) {
	f, err := os.OpenFile(d.Path(), os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return os.OpenFile(d.Path(), os.O_RDWR, 0)
}

// choose finds the disk. Disks come up after the kernel: it waits until the rule is met, or as long as controllers take.
func (s *session) choose(ctx context.Context, m Manifest) (d Disk, err error) {
	for end := time.Now().Add(30 * time.Second); ; {
		all, lerr := Disks("/")
		if lerr != nil {
			return d, lerr
		}
		d, err = s.cfg.Disk.Choose(all, m.Size)
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return d, err
		}
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// progress reports at most every few seconds, and never fails an install.
func (s *session) progress(ctx context.Context, step string, done, all int64) {
	if time.Since(s.told) < 5*time.Second && (done < all || step == s.toldStep) {
		return
	}
	s.told, s.toldStep = time.Now(), step
	text := fmt.Sprintf("%s: %d %% of %s", step, 100*done/all, size(all))
	s.log.Info(text)
	if err := s.reportOnce(ctx, schema.InstallReport{State: schema.InstallRunning, Text: text}); err != nil {
		s.log.Warn("progress could not be reported", "err", redact(err.Error()))
	}
}

// report tells the platform, until it has heard.
func (s *session) report(ctx context.Context, r schema.InstallReport) error {
	err := again(ctx, func() error { return s.reportOnce(ctx, r) })
	if err != nil {
		return fmt.Errorf("report to the platform: %w", err)
	}
	return nil
}

func (s *session) reportOnce(ctx context.Context, r schema.InstallReport) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.Base()+"/"+schema.InstallReportName, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // only words
		return fmt.Errorf("%w: %s", &statusError{resp.StatusCode}, strings.TrimSpace(string(why)))
	}
	return nil
}
