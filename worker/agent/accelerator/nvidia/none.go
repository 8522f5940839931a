//go:build !cgo || !linux

package nvidia

import (
	"context"
	"fmt"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// Reader says that it can't read.
type Reader struct{}

// New is the reader of a build without NVML.
func New(string, time.Time) *Reader { return &Reader{} }

var errBuilt = fmt.Errorf("NVML: %w (built with CGO_ENABLED=0)", accelerator.ErrNotBuilt)

// Vendor implements accelerator.Reader.
func (*Reader) Vendor() schema.Vendor { return schema.VendorNVIDIA }

// Driver implements accelerator.Reader.
func (*Reader) Driver(context.Context) (string, error) { return "", errBuilt }

// Read implements accelerator.Reader.
func (*Reader) Read(context.Context) ([]agentproto.Device, error) { return nil, errBuilt }

// Watch implements accelerator.Reader.
func (*Reader) Watch(context.Context, func(accelerator.Sign)) error { return errBuilt }
