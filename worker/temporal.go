package worker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"gpupool/schema/secret"
	"gpupool/worker/codec"
	"gpupool/worker/config"
	"gpupool/worker/embedded"
	"gpupool/worker/namespace"
)

// connect reaches the configured Temporal, starting the embedded server where there is none outside. A server that meets
// an error it can't go on from ends the process: workflows continue at the next start.
func (p *Process) connect(ctx context.Context) error {
	c := p.Config
	keys, err := payloadKeys(c)
	if err != nil {
		return fmt.Errorf("temporal.payload_key_file: %w", err)
	}
	crypt, err := codec.New(keys)
	if err != nil {
		return err
	}
	o := client.Options{HostPort: c.Temporal.Address, Namespace: c.Temporal.Namespace, Logger: sdklog.NewStructuredLogger(p.log.With("part", "temporal")), Identity: identity(),
		DataConverter: crypt.DataConverter(), FailureConverter: crypt.FailureConverter()}
	if c.Temporal.Mode == config.Embedded {
		srv, err := embedded.Start(ctx, embedded.Options{Dir: c.TemporalDir(), Namespace: c.Temporal.Namespace, Retention: c.Temporal.Retention, Sync: embedded.Sync(c.Durability), Port: port(c.Temporal.Address), Logger: p.log.With("part", "temporal-server")})
		if err != nil {
			return err
		}
		p.onStop(func() {
			if err := srv.Stop(); err != nil {
				p.log.Error("stopping the embedded Temporal server", "error", err)
			}
		})
		p.spawn("temporal", func(ctx context.Context) error { return outlive(ctx, srv) })
		o.HostPort = srv.HostPort()
		o.ConnectionOptions.GrpcCompression = &client.GrpcCompressionNone{} // over loopback it only costs
	} else if o.ConnectionOptions.TLS, err = clientTLS(c.Temporal.TLS); err != nil {
		return err
	}
	if p.Client, err = p.dial(ctx, o); err != nil {
		return fmt.Errorf("reaching Temporal at %s: %w (is it running? see temporal.address)", o.HostPort, err)
	}
	p.onStop(p.Client.Close)
	if c.Temporal.Mode != config.Embedded {
		return namespace.Ensure(ctx, p.Client, c.Temporal.Namespace, c.Temporal.Retention)
	}
	return nil
}

// startWithin is how long a process that starts waits for Temporal elsewhere: machines that lost power together start
// together, in any order.
const startWithin = time.Minute

// dial connects, waiting for a Temporal that is not there yet.
func (p *Process) dial(ctx context.Context, o client.Options) (client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for told := false; ; told = true {
		c, err := client.DialContext(ctx, o)
		if err == nil || p.Config.Temporal.Mode == config.Embedded {
			return c, err
		}
		if !told {
			p.log.Warn("Temporal does not answer; waiting for it", "address", o.HostPort, "for", startWithin, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// outlive waits for the process's end, or for the server's, which is an error.
func outlive(ctx context.Context, srv interface {
	Failed() <-chan struct{}
	Err() error
}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-srv.Failed():
		return srv.Err()
	}
}

// payloadKeys reads the keys that encrypt what workflows carry. Only a pool in one process makes them by itself: where
// several need the same keys, making one silently would make two.
func payloadKeys(c *config.Config) (secret.Keys, error) {
	if c.Temporal.Mode == config.Embedded {
		return secret.LoadOrCreateKeys(c.Temporal.PayloadKeyFile)
	}
	return secret.LoadKeys(c.Temporal.PayloadKeyFile)
}

func clientTLS(t config.ClientTLS) (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	out := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("temporal.tls.ca: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("temporal.tls.ca: %s holds no certificate in PEM", t.CA)
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("temporal.tls.cert: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

// port is the port of a host:port that the configuration has checked; 0 where it has none.
func port(address string) int {
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(p)
	if err != nil {
		return 0
	}
	return n
}

// identity tells this life of the process from every other, its own earlier ones too: in a container each is process 1 of
// the same host.
var identity = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), strconv.FormatInt(time.Now().UnixMilli(), 36))
})
