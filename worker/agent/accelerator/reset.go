package accelerator

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"gpupool/schema/agentproto"
)

// Resetter is a Reader whose devices can be reset. all says that the list is all of the server's, which are then reset together
// with what links them. No process may use them: the caller has seen to it.
type Resetter interface {
	Reset(ctx context.Context, list []agentproto.Device, all bool) error
}

// RunTool runs a vendor's tool. Its exit code alone proves nothing: what it said is part of the error, and the caller looks at the
// devices afterwards.
func RunTool(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%s is not installed", name)
	}
	if err != nil {
		text := strings.TrimSpace(string(out))
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text[max(0, len(text)-500):])
	}
	return nil
}
