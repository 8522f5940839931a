package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// reset resets devices through their vendors' readers. It is refused while a job holds one of them: that is checked here, at the
// moment of the act, and no job is let begin on them until it is over. Repeating it is harmless.
func (t *tasks) reset(ctx context.Context, payload json.RawMessage) (any, string, error) {
	var in agentproto.Reset
	if err := json.Unmarshal(payload, &in); err != nil {
		return nil, "", fmt.Errorf("the task's payload could not be read: %w", err)
	}
	all, _ := t.devices.read(ctx)
	if len(all) == 0 {
		all = t.devices.cached() // a driver that hangs says nothing: what it said last is what is reset
	}
	vendors := map[schema.Vendor][]agentproto.Device{}
	var ids []string
	for _, id := range in.Devices {
		d, ok := accelerator.Find(all, id)
		if !ok {
			return nil, "", fmt.Errorf("this server has no device %s that could be reset", id)
		}
		vendors[d.Vendor] = append(vendors[d.Vendor], d)
		ids = append(ids, accelerator.Identity(d))
	}
	if len(in.Devices) == 0 {
		for _, d := range all {
			vendors[d.Vendor] = append(vendors[d.Vendor], d)
			ids = append(ids, accelerator.Identity(d))
		}
	}
	release, err := t.reserve(ids)
	if err != nil {
		return nil, "", err
	}
	defer release()
	var done []string
	for _, r := range t.cfg.Readers {
		list := vendors[r.Vendor()]
		if len(list) == 0 {
			continue
		}
		x, ok := r.(accelerator.Resetter)
		if !ok {
			return nil, "", fmt.Errorf("devices of %s can't be reset by this agent", r.Vendor())
		}
		if err := x.Reset(ctx, list, len(in.Devices) == 0); err != nil {
			return nil, "", fmt.Errorf("reset of %s devices: %w", r.Vendor(), err)
		}
		for _, d := range list {
			done = append(done, orElse(d.Slot, accelerator.Identity(d)))
		}
		delete(vendors, r.Vendor())
	}
	if len(done) == 0 || len(vendors) > 0 {
		return nil, "", errors.New("no reader of their vendor: nothing was reset")
	}
	slices.Sort(done)
	return nil, "reset " + strings.Join(done, ", "), nil
}

// resetHolder is who holds devices while they are reset.
const resetHolder = "a reset"

func (t *tasks) reserve(ids []string) (release func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if by := t.held[id]; by != "" {
			return nil, fmt.Errorf("device %s is held by task %s, which has not ended: it is not reset", id, by)
		}
	}
	for _, id := range ids {
		t.held[id] = resetHolder
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, id := range ids {
			if t.held[id] == resetHolder {
				delete(t.held, id)
			}
		}
	}, nil
}
