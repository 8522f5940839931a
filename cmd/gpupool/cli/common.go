package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpupool/api/words"
	"gpupool/schema"
)

// said ends a verb that changed something: the thing itself for programs, one sentence for people.
func (a *app) said(cmd *cobra.Command, v any, format string, args ...any) error {
	if a.json() {
		return printJSON(cmd.OutOrStdout(), v)
	}
	fmt.Fprintln(cmd.OutOrStdout(), words.Printable(fmt.Sprintf(format, args...), false))
	return nil
}

// pages reads pages until there is no next one or limit is reached; 0 = all.
func pages[T any](limit int, read func(after string, n int) ([]T, string, error)) ([]T, error) {
	all := []T{} // [] in JSON, never null
	after := ""
	for {
		n := 500
		if limit > 0 {
			n = min(n, limit-len(all))
		}
		items, next, err := read(after, n)
		if err != nil {
			return nil, err
		}
		all = append(all, items...)
		if next == "" || len(items) == 0 || limit > 0 && len(all) >= limit {
			return all, nil
		}
		after = next
	}
}

// required marks flags without which the verb can't run; leaving one out is a usage error.
func required(cmd *cobra.Command, names ...string) {
	run := cmd.RunE
	cmd.RunE = func(c *cobra.Command, args []string) error {
		for _, n := range names {
			if f := c.Flags().Lookup(n); f.Value.String() == "" || f.Value.String() == "[]" {
				return usageError{fmt.Errorf("needs --%s: %s", n, f.Usage)}
			}
		}
		return run(c, args)
	}
}

func join[S ~string](list []S) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return strings.Join(out, ", ")
}

func nowInstant() schema.Instant { return schema.At(time.Now()) }
