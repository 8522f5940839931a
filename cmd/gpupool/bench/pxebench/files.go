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
	curl := func(args ...string) []string { return append([]string{"curl", "-sf", "-o", "/dev/null"}, args...) }
	measure := func(ones ...[]string) func() ([]float64, error) {
		return func() ([]float64, error) {
			var out []float64
			for i, command := range ones {
				n, bytes := 1, float64(size)
				if i == 0 {
					n, bytes = many, size/16
				}
				v, err := b.fetch(n, bytes, command)
				if err != nil {
					return nil, err
				}
				out = append(out, v)
			}
			return out, nil
		}
	}
	const tftpBase, httpBase = "tftp://10.88.0.1/", "http://10.88.0.1"
	tftp := measure(
		curl("--tftp-blksize", "1468", tftpBase+"part"), curl("--tftp-blksize", "1468", tftpBase+"initrd"),
		[]string{"atftp", "--option", "blksize 1468", "-g", "-r", "initrd", "-l", "/dev/null", "10.88.0.1"},
		// What EDK2's firmware asks for; a server that doesn't have it sends one block at a time.
		[]string{"atftp", "--option", "blksize 1468", "--option", "windowsize 4", "-g", "-r", "initrd", "-l", "/dev/null", "10.88.0.1"})
	ours := func() (func(), error) { return b.service(setup{Driver: sqlite}) }
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
		{"nginx", func() (func(), error) { return b.daemon("80", "nginx", "-c", b.path("nginx.conf")) }, measure(curl(httpBase+"/part"), curl(httpBase+"/initrd"))},
		{"gpupool", ours, measure(curl(httpBase+":8080/files/part"), curl(httpBase+":8080/files/initrd"))},
	})
	if err != nil {
		return nil, err
	}
	return []Result{
		{Name: "TFTP, 100 MiB, one client (curl), block by block", Unit: "MB/s", Value: t["gpupool"][1], Peers: peersOf(t, 1)},
		{Name: "TFTP, 100 MiB, one client (atftp), block by block", Unit: "MB/s", Value: t["gpupool"][2], Peers: peersOf(t, 2)},
		{Name: "TFTP, 100 MiB, one client (atftp), which asks for windows of 4", Unit: "MB/s", Value: t["gpupool"][3], Peers: peersOf(t, 3)},
		{Name: "TFTP, 64 clients, block by block", Unit: "MB/s", Value: t["gpupool"][0], Peers: peersOf(t, 0)},
		{Name: "HTTP, 100 MiB, one client", Unit: "MB/s", Value: h["gpupool"][1], Peers: peersOf(h, 1)},
		{Name: "HTTP, 64 clients", Unit: "MB/s", Value: h["gpupool"][0], Peers: peersOf(h, 0)},
	}, nil
}

// fetch lets n clients at once fetch so many bytes each and returns MB/s of all together.
func (b *bench) fetch(n int, bytes float64, command []string) (float64, error) {
	g, ctx := errgroup.WithContext(b.ctx)
	begin := time.Now()
	for range n {
		g.Go(func() error {
			_, err := b.far.run(ctx, command...)
			return err
		})
	}
	err := g.Wait()
	return float64(n) * bytes / 1e6 / time.Since(begin).Seconds(), err
}
