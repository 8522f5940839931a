// Command gendocs writes the reference pages of the server's settings and of the devices' metrics into a folder.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gpupool/worker/agent/accelerator"
	"gpupool/worker/config"
)

func main() {
	for page, text := range map[string]func(io.Writer) error{"configuration.md": config.WriteReference, "device-metrics.md": accelerator.WriteReference} {
		if err := write(filepath.Join(os.Args[1], page), text); err != nil {
			fmt.Fprintln(os.Stderr, "gendocs:", err)
			os.Exit(1)
		}
	}
}

func write(path string, text func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := text(f); err != nil {
		_ = f.Close() // what failed to be written is written again
		return err
	}
	return f.Close()
}
