// Command gendocs writes the reference page of the server's settings.
package main

import (
	"fmt"
	"os"

	"gpupool/worker/config"
)

func main() {
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(1)
	}
}

func write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := config.WriteReference(f); err != nil {
		_ = f.Close() // what failed to be written is written again
		return err
	}
	return f.Close()
}
