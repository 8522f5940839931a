package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpupool/schema"
)

// control is how another process reaches into the lab: HTTP on loopback, with a token that lies in the lab's folder.
type control struct {
	lab   *Lab
	ln    net.Listener
	token string
}

// address is the control's file.
type address struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

const controlFile = "control.json"

// order is what is asked of the lab.
type order struct {
	Server string `json:"server"`
	Device string `json:"device,omitempty"`
	Kind   string `json:"kind,omitempty"`
	Serial string `json:"serial,omitempty"`
}

func (l *Lab) openControl() (*control, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("lab's control: %w", err)
	}
	c := &control{lab: l, ln: ln, token: rand.Text()}
	b, err := json.Marshal(address{URL: "http://" + ln.Addr().String(), Token: c.token})
	if err == nil {
		tmp := filepath.Join(l.cfg.Dir, "."+controlFile)
		if err = os.WriteFile(tmp, b, 0o600); err == nil {
			err = os.Rename(tmp, filepath.Join(l.cfg.Dir, controlFile))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lab's control: %w", err), ln.Close())
	}
	return c, nil
}

func (c *control) serve(ctx context.Context) {
	mux := http.NewServeMux()
	act := func(f func(o order) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var o order
			err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&o)
			if err == nil {
				err = f(o)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}
	}
	mux.HandleFunc("POST /fault", act(func(o order) error { return c.lab.Fault(o.Server, o.Device, o.Kind) }))
	mux.HandleFunc("POST /clear", act(func(o order) error { return c.lab.Clear(o.Server, o.Device, o.Kind) }))
	mux.HandleFunc("POST /replace", act(func(o order) error { return c.lab.Replace(o.Server, o.Device, o.Serial) }))
	c.serveBMC(mux)
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(c.lab.State()) // the asker may be gone
	})
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+c.token)) != 1 {
				http.Error(w, "the lab's token is in its folder, in "+controlFile, http.StatusUnauthorized)
				return
			}
			mux.ServeHTTP(w, r)
		})}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(c.ln); !errors.Is(err, http.ErrServerClosed) {
		c.lab.cfg.Log.Error("lab's control", "err", err)
	}
}

// Client reaches a lab that runs in another process.
type Client struct {
	at   address
	http http.Client
}

// Open finds the lab whose folder it is given.
func Open(dir string) (*Client, error) {
	b, err := os.ReadFile(filepath.Join(dir, controlFile))
	if err != nil {
		return nil, &schema.Error{Code: schema.CodeUnavailable, Message: fmt.Sprintf("no lab runs in %s: %s", dir, err), Hint: "`gpupool up --lab demo` prints its folder; give it as --dir", Err: err}
	}
	c := &Client{http: http.Client{Timeout: 30 * time.Second}}
	if err := json.Unmarshal(b, &c.at); err != nil {
		return nil, fmt.Errorf("%s: %w", controlFile, err)
	}
	return c, nil
}

// Fault is Lab.Fault.
func (c *Client) Fault(ctx context.Context, server, device, kind string) error {
	return c.call(ctx, "POST", "/fault", order{Server: server, Device: device, Kind: kind}, nil)
}

// Clear is Lab.Clear.
func (c *Client) Clear(ctx context.Context, server, device, kind string) error {
	return c.call(ctx, "POST", "/clear", order{Server: server, Device: device, Kind: kind}, nil)
}

// Replace is Lab.Replace.
func (c *Client) Replace(ctx context.Context, server, slot, serial string) error {
	return c.call(ctx, "POST", "/replace", order{Server: server, Device: slot, Serial: serial}, nil)
}

// State is Lab.State.
func (c *Client) State(ctx context.Context) (s []ServerState, err error) {
	return s, c.call(ctx, "GET", "/state", nil, &s)
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.at.URL+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.at.Token)
	resp, err := c.http.Do(req)
	if err != nil {
		return &schema.Error{Code: schema.CodeUnavailable, Message: "the lab does not answer: " + err.Error(), Hint: "does the `gpupool up` of that lab still run?", Err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // only for words
		refused := &schema.Error{Code: schema.CodeInternal, Message: strings.TrimSpace(string(text))}
		if resp.StatusCode == http.StatusBadRequest { // the control's answer to every order that can't be carried out
			refused.Code = schema.CodeInvalid
		}
		return refused
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}
