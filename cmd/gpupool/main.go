// Command gpupool is the one binary: the client's verbs, the server's roles, the lab, the demo and the measurements.
//
// Not here: what any of them does; this is flags and wiring.
package main

//go:generate go run . gen-docs ../../docs/reference/cli.md

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"gpupool/cmd/gpupool/bench"
	"gpupool/cmd/gpupool/cli"
	"gpupool/cmd/gpupool/demo"
	"gpupool/cmd/gpupool/labcli"
	"gpupool/cmd/gpupool/serve"
	"gpupool/cmd/gpupool/simcli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := cli.Root()
	servers := serve.Commands()
	root.AddCommand(servers...)
	for _, c := range servers {
		if c.Name() == "pxe" {
			c.AddCommand(cli.BootWatch())
		}
	}
	root.AddCommand(labcli.Command(), demo.Command(), bench.Command(), simcli.Command())
	os.Exit(cli.Execute(ctx, root))
}
