package pxebench

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// files is how fast one client and many at once fetch, all together, by TFTP with the blocks that firmware asks for and
// by HTTP.
func (b *bench) files() ([]Result, error) {
	for name, n := range map[string]int{"initrd": size, "part": size / 16} {
		if err := os.WriteFile(b.path(name), make([]byte, n), 0o644); err != nil {
			return nil, err
		}
	}
	conf := fmt.Sprintf("user root; daemon off; worker_processes auto; pid %s; error_log /dev/null; events { worker_connections 1024; } "+
		"http { access_log off; sendfile on; server { listen 10.88.0.1:80; root %s; } }", b.path("nginx.pid"), b.dir)
	if err := os.WriteFile(b.path("nginx.conf"), []byte(conf), 0o644); err != nil {
		return nil, err
	}
	fetch := func(url string, args ...string) func() ([]float64, error) {
		return func() ([]float64, error) {
			one, err := b.fetch(1, size, append(args, url+"initrd")...)
			if err != nil {
				return nil, err
			}
			all, err := b.fetch(many, size/16, append(args, url+"part")...)
			return []float64{one, all}, err
		}
	}
	tftp, ours := fetch("tftp://10.88.0.1/", "--tftp-blksize", "1468"), func() (func(), error) { return b.service(setup{Driver: sqlite}) }
	t, err := b.turns("TFTP", []one{
		{"tftpd-hpa", func() (func(), error) {
			return b.daemon("69", "in.tftpd", "-L", "-4", "-a", "10.88.0.1:69", "-u", "root", "-s", b.dir)
		}, tftp},
		{"gpupool", ours, tftp},
		{"dnsmasq", func() (func(), error) {
			return b.daemon("69", "dnsmasq", "-k", "-p", "0", "--enable-tftp", "--tftp-root="+b.dir, "--tftp-max="+strconv.Itoa(2*many), "--user=root", "--pid-file=", "--log-facility=-")
		}, tftp},
	})
	if err != nil {
		return nil, err
	}
	h, err := b.turns("HTTP", []one{
		{"nginx", func() (func(), error) { return b.daemon("80", "nginx", "-c", b.path("nginx.conf")) }, fetch("http://10.88.0.1/")},
		{"gpupool", ours, fetch("http://10.88.0.1:8080/files/")},
	})
	if err != nil {
		return nil, err
	}
	return []Result{
		{Name: "TFTP, 100 MiB, one client", Unit: "MB/s", Value: t["gpupool"][0], Peers: peersOf(t, 0)},
		{Name: "TFTP, 64 clients", Unit: "MB/s", Value: t["gpupool"][1], Peers: peersOf(t, 1)},
		{Name: "HTTP, 100 MiB, one client", Unit: "MB/s", Value: h["gpupool"][0], Peers: peersOf(h, 0)},
		{Name: "HTTP, 64 clients", Unit: "MB/s", Value: h["gpupool"][1], Peers: peersOf(h, 1)},
	}, nil
}

// fetch lets n clients at once fetch so many bytes each and returns MB/s of all together.
func (b *bench) fetch(n int, bytes float64, args ...string) (float64, error) {
	g, ctx := errgroup.WithContext(b.ctx)
	begin := time.Now()
	for range n {
		g.Go(func() error {
			_, err := b.far.run(ctx, append([]string{"curl", "-sf", "-o", "/dev/null"}, args...)...)
			return err
		})
	}
	err := g.Wait()
	return float64(n) * bytes / 1e6 / time.Since(begin).Seconds(), err
}
