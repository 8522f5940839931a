package bmc

import "context"

// Vitals is a server's state in one request. Empty fields are what the BMC doesn't say.
type Vitals struct {
	Power    PowerState `json:"power"`
	Progress string     `json:"progress,omitempty"` // BootProgress.LastState
	Health   string     `json:"health,omitempty"`   // Status.Health of the system
}

// Vitals reads power, boot progress and health. It is the one request that a watch makes often.
func (c *Client) Vitals(ctx context.Context) (_ Vitals, err error) {
	defer c.conn.named("read state of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return Vitals{Power: PowerUnknown}, err
	}
	r, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return Vitals{Power: PowerUnknown}, err
	}
	if err := c.ours(r); err != nil {
		return Vitals{Power: PowerUnknown}, err
	}
	return Vitals{Power: powerOf(r), Progress: r.str("BootProgress", "LastState"), Health: r.str("Status", "Health")}, nil
}
