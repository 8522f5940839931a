package amd

import (
	"context"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// Reset implements accelerator.Resetter. Devices linked by XGMI are reset together by the driver whichever is named.
func (r *Reader) Reset(ctx context.Context, list []agentproto.Device, all bool) error {
	if all {
		return accelerator.RunTool(ctx, "amd-smi", "reset", "--gpureset", "--gpu", "all")
	}
	for _, d := range list {
		if err := accelerator.RunTool(ctx, "amd-smi", "reset", "--gpureset", "--gpu", d.PCI); err != nil {
			return err
		}
	}
	return nil
}
