package nvidia

import (
	"context"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// Reset implements accelerator.Resetter. Behind NVSwitches a single GPU can't be reset by itself: nvidia-smi says so, and all
// are reset together next.
func (r *Reader) Reset(ctx context.Context, list []agentproto.Device, all bool) error {
	if all {
		return accelerator.RunTool(ctx, "nvidia-smi", "--gpu-reset")
	}
	for _, d := range list {
		id := d.UUID
		if id == "" {
			id = d.PCI
		}
		if err := accelerator.RunTool(ctx, "nvidia-smi", "--gpu-reset", "-i", id); err != nil {
			return err
		}
	}
	return nil
}
