package installer

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
)

// WriteAndSeal is the install's work on the disk alone, on whatever file stands for it: everything but the root file system.
func WriteAndSeal(ctx context.Context, cfg Config, disk *os.File, d Disk) error {
	s := &session{cfg: cfg, http: http.DefaultClient, log: slog.New(slog.DiscardHandler)}
	m, err := s.manifest(ctx)
	if err != nil {
		return err
	}
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
	return seal(disk, d, g, first)
}

// ReadAll reads a file as the image is read.
func ReadAll(ctx context.Context, url string) ([]byte, error) {
	s := &session{http: http.DefaultClient}
	r := s.open(ctx, url)
	defer r.Close()
	return io.ReadAll(r)
}

// Redact and Unpack are what their lower-case twins are.
var (
	Redact = redact
	Unpack = unpack
)
