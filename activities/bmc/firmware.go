package bmc

import "context"

// Firmware is one entry of the firmware inventory.
type Firmware struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Version   string `json:"version"` // "" unknown
	Updatable *bool  `json:"updatable,omitempty"`
	State     string `json:"state"`
	Health    string `json:"health"`
}

// Firmware reads the firmware inventory. It is a long read: two to three minutes on a DGX H100
// (https://github.com/dsx-ai-factory/infra-controller/issues/1584), during which other verbs go on.
func (c *Client) Firmware(ctx context.Context) (_ []Firmware, err error) {
	defer c.conn.named("read firmware of", &err)
	ctx = inBulk(ctx)
	root, err := c.conn.root(ctx)
	if err != nil {
		return nil, err
	}
	service, err := c.conn.get(ctx, orDefault(root.link("UpdateService"), "/redfish/v1/UpdateService"))
	if err != nil {
		return nil, err
	}
	list, err := c.conn.collect(ctx, service.link("FirmwareInventory"), lenient)
	if err != nil {
		return nil, err
	}
	out := make([]Firmware, 0, len(list))
	for _, r := range list {
		out = append(out, Firmware{ID: orDefault(r.str("Id"), lastSegment(r.uri)), Name: r.str("Name"), Version: r.word("Version"),
			Updatable: flag(r, "Updateable"), State: r.str("Status", "State"), Health: r.str("Status", "Health")})
	}
	return out, nil
}
