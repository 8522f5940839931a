package cli

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/schema"
)

// patience is how long a watch goes on trying while the pool does not answer.
const patience = 2 * time.Minute

// longPoll is how long one read waits for news. Proxies cut at 60 s.
const longPoll = 25 * time.Second

// connect makes the API's client from flags, environment and profile. It refuses an output format that the verb does
// not have beside table and json.
func (a *app) connect(formats ...string) (*client.Client, error) {
	if formats = append([]string{"table", "json"}, formats...); !slices.Contains(formats, a.output) {
		return nil, schema.Invalid("output", a.output, strings.Join(formats, ", "))
	}
	p, err := resolve(a.url, a.profile)
	if err != nil {
		return nil, err
	}
	return dial(p)
}

// changeKey is where a command's context keeps whether it has asked the pool for a change: an interrupted one says then that
// what it started goes on.
type changeKey struct{}

func dial(p Profile) (*client.Client, error) {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.ResponseHeaderTimeout = 2 * longPoll
	if p.CA != "" {
		pem, err := os.ReadFile(p.CA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, schema.Invalid("ca", p.CA, "a file with PEM certificates")
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	hc := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return client.NewClient(p.URL, client.WithHTTPClient(hc), client.WithRequestEditorFn(func(ctx context.Context, r *http.Request) error {
		if asked, ok := ctx.Value(changeKey{}).(*atomic.Bool); ok && r.Method != http.MethodGet {
			asked.Store(true)
		}
		if p.Token != "" {
			r.Header.Set("Authorization", "Bearer "+p.Token)
		}
		r.Header.Set("User-Agent", "gpupool-cli")
		return nil
	}))
}

// again repeats a read while the pool does not answer, and says so once on standard error.
func again[T any](cmd *cobra.Command, f func() (T, error)) (T, error) {
	return call.Again(cmd.Context(), patience, func(err error) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%v; trying again for up to %s\n", err, patience)
	}, f)
}

// accept asks for another form of the answer than JSON.
func accept(kind string) client.RequestEditorFn {
	return func(_ context.Context, r *http.Request) error {
		r.Header.Set("Accept", kind)
		return nil
	}
}

// opt is a pointer to v, or nil where v is the zero value: how the generated client says "not given".
func opt[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// secret asks for a secret without showing it; from something that is no terminal it reads one line.
func secret(cmd *cobra.Command, prompt string) (string, error) {
	if f, ok := cmd.InOrStdin().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprint(cmd.ErrOrStderr(), prompt+": ")
		b, err := term.ReadPassword(int(f.Fd()))
		fmt.Fprintln(cmd.ErrOrStderr())
		return strings.TrimSpace(string(b)), err
	}
	s := bufio.NewScanner(cmd.InOrStdin())
	s.Scan()
	return strings.TrimSpace(s.Text()), s.Err()
}
