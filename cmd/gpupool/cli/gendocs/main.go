// Command gendocs writes the reference page of the client's verbs.
package main

import (
	"context"
	"os"

	"gpupool/cmd/gpupool/cli"
)

func main() {
	root := cli.Root()
	root.SetArgs(append([]string{"gen-docs"}, os.Args[1:]...))
	os.Exit(cli.Execute(context.Background(), root))
}
