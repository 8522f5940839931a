// Package demo tells the whole story.
package demo

import "github.com/spf13/cobra"

// Command is `gpupool demo`.
func Command() *cobra.Command { return &cobra.Command{Use: "demo", Hidden: true} }
