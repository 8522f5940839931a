package bmc

import (
	"context"
	"net/http"
	"slices"

	"github.com/stmcginnis/gofish/schemas"
)

// ResetBMC restarts the BMC itself, gracefully where it can, and waits until its service answers again. The host's power
// isn't touched. All sessions end with it.
func (c *Client) ResetBMC(ctx context.Context) (err error) {
	defer c.conn.named("reset the bmc", &err)
	h, err := c.find(ctx)
	if err != nil {
		return err
	}
	if len(h.managers) == 0 {
		return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "the system names no manager"}
	}
	m, err := c.conn.get(ctx, h.managers[0])
	if err != nil {
		return err
	}
	target, _ := m.at("Actions", "#Manager.Reset", "target").(string)
	if target == "" {
		return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: m.uri, Detail: "the manager has no reset action"}
	}
	kind := schemas.GracefulRestartResetType
	if list := stringsOf(m.at("Actions", "#Manager.Reset", "ResetType@Redfish.AllowableValues")); list != nil && !slices.Contains(list, string(kind)) {
		kind = schemas.ForceRestartResetType
	}
	header := http.Header{}
	if tag := h.manners.managerResetIfMatch; tag != "" {
		header.Set("If-Match", tag)
	}
	if _, err := c.conn.post(ctx, target, map[string]string{"ResetType": string(kind)}, header); err != nil && !isKind(err, ErrUnreachable) {
		return err // one that goes down before it answers has heard us
	}
	_, err = c.until(ctx, c.conn.pool.cfg.Timing.TaskLost, func(ctx context.Context) (bool, error) {
		a, err := c.conn.exchange(ctx, http.MethodGet, "/redfish/v1/", http.Header{}, nil)
		return err == nil && a.status == http.StatusOK, err
	})
	return err
}
