package accelerator

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// toolLimit is how long a vendor's tool may take to say what it sees.
const toolLimit = 8 * time.Second

// AskTool runs a vendor's tool for what it prints. ErrNoDriver where it is not installed. A tool that waits for a device that hangs
// is killed when its time is over.
func AskTool(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%s is not installed: %w", name, ErrNoDriver)
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s %s gave no answer within %s", name, strings.Join(args, " "), toolLimit)
	case err != nil:
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}

// ToolNumber reads a number that a tool prints, with or without a unit behind it. "N/A", "NA" and "-" say that the hardware can't
// tell: na. Anything else is not known.
func ToolNumber(s string) (v float64, ok, na bool) {
	s = strings.TrimSpace(s)
	switch strings.ToUpper(s) {
	case "N/A", "NA", "-", "[N/A]", "[NOT SUPPORTED]":
		return 0, false, true
	}
	s, _, _ = strings.Cut(s, " ")
	v, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
	return v, err == nil && v == v && v < 1e300 && v > -1e300, false
}
