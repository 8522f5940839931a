// Command gpupool is the one binary: the client's verbs, the server's roles, the lab, the demo and the measurements.
//
// Not here: what any of them does; this is flags and wiring.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"gpupool/cmd/gpupool/cli"
	"gpupool/cmd/gpupool/demo"
	"gpupool/cmd/gpupool/labcli"
	"gpupool/cmd/gpupool/serve"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := cli.Root()
	root.AddCommand(serve.Commands()...)
	root.AddCommand(labcli.Command(), demo.Command())
	os.Exit(cli.Execute(ctx, root))
}
