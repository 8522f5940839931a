package bmc

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/schemas"
)

// InsertMedia puts an image into the virtual CD drive and makes the next boot one from it: the way in where there is no
// DHCP. The image is fetched by the BMC; image is an http, https, nfs or cifs URI that it can reach.
func (c *Client) InsertMedia(ctx context.Context, image string) (err error) {
	defer c.conn.named("insert media at", &err)
	h, err := c.find(ctx)
	if err != nil {
		return err
	}
	slot, err := c.cdSlot(ctx, h)
	if err != nil {
		return err
	}
	if slot.str("Image") != image {
		if inserted(slot) {
			if err := c.eject(ctx, slot); err != nil {
				return err
			}
		}
		body := map[string]any{"Image": image, "Inserted": true, "WriteProtected": true}
		if target, ok := slot.at("Actions", "#VirtualMedia.InsertMedia", "target").(string); ok {
			a, err := c.conn.post(ctx, target, body, nil)
			if err != nil {
				return err
			}
			if a.status == http.StatusAccepted {
				if err := c.WaitTask(ctx, taskOf(a), c.holds(slot.uri, image)); err != nil {
					return err
				}
			}
		} else if err := c.conn.patch(ctx, slot.uri, body); err != nil {
			return err
		}
	}
	ok, err := c.until(ctx, c.conn.pool.cfg.Timing.ReadBack, c.holds(slot.uri, image))
	if err != nil {
		return err
	}
	if !ok {
		return &Error{Kind: ErrNotProven, Address: c.conn.address, URI: slot.uri, Detail: "the drive doesn't show the image", Hint: "can the bmc reach it?"}
	}
	_, err = c.setOverride(ctx, override{target: string(schemas.CdBootSource), enabled: string(schemas.OnceBootSourceOverrideEnabled), mode: string(schemas.UEFIBootSourceOverrideMode)})
	return err
}

// Medium is what the virtual CD drive holds.
type Medium struct {
	URI      string `json:"uri"` // of the drive
	Image    string `json:"image,omitempty"`
	Inserted bool   `json:"inserted"`
}

// Media reads the virtual CD drive.
func (c *Client) Media(ctx context.Context) (_ Medium, err error) {
	defer c.conn.named("read media of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return Medium{}, err
	}
	slot, err := c.cdSlot(ctx, h)
	if err != nil {
		return Medium{}, err
	}
	return Medium{URI: normalURI(slot.uri), Image: slot.word("Image"), Inserted: inserted(slot)}, nil
}

// EjectMedia empties the virtual CD drive. An empty one is left alone.
func (c *Client) EjectMedia(ctx context.Context) (err error) {
	defer c.conn.named("eject media at", &err)
	h, err := c.find(ctx)
	if err != nil {
		return err
	}
	slot, err := c.cdSlot(ctx, h)
	if err != nil || !inserted(slot) {
		return err
	}
	return c.eject(ctx, slot)
}

func (c *Client) eject(ctx context.Context, slot *resource) error {
	if target, ok := slot.at("Actions", "#VirtualMedia.EjectMedia", "target").(string); ok {
		if _, err := c.conn.post(ctx, target, map[string]any{}, nil); err != nil {
			return err
		}
	} else if err := c.conn.patch(ctx, slot.uri, map[string]any{"Image": nil, "Inserted": false}); err != nil {
		return err
	}
	ok, err := c.until(ctx, c.conn.pool.cfg.Timing.ReadBack, func(ctx context.Context) (bool, error) {
		r, err := c.conn.get(ctx, slot.uri)
		return err == nil && !inserted(r), err
	})
	if err == nil && !ok {
		err = &Error{Kind: ErrNotProven, Address: c.conn.address, URI: slot.uri, Detail: "the drive still shows an image"}
	}
	return err
}

func (c *Client) holds(uri, image string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		r, err := c.conn.get(ctx, uri)
		return err == nil && r.str("Image") == image && inserted(r), err
	}
}

func inserted(r *resource) bool {
	b, ok := r.at("Inserted").(bool)
	return ok && b || !ok && r.str("Image") != ""
}

// cdSlot finds the virtual drive that takes a CD image: of the system, else of its manager. Makers moved it over the years.
func (c *Client) cdSlot(ctx context.Context, h *host) (*resource, error) {
	for _, owner := range append([]string{h.uri}, h.managers...) {
		if owner != h.uri && h.shares {
			break // the manager's drive may be another server's
		}
		r, err := c.conn.get(ctx, owner)
		if err == nil && owner == h.uri {
			err = c.ours(r)
		}
		if err != nil {
			return nil, err
		}
		slots, err := c.conn.collect(ctx, r.link("VirtualMedia"), lenient)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(slots, func(a, b *resource) int { return cmp.Compare(natural(a.uri), natural(b.uri)) })
		for _, s := range slots {
			if _, shows := s.body["Image"]; !shows && s.at("Actions", "#VirtualMedia.InsertMedia", "target") == nil {
				continue // a slot of OpenBMC's that a browser fills
			}
			types := stringsOf(s.at("MediaTypes"))
			if slices.ContainsFunc(types, func(t string) bool { return strings.EqualFold(t, "CD") || strings.EqualFold(t, "DVD") }) {
				return s, nil
			}
		}
	}
	return nil, &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "no virtual drive takes a CD image", Hint: "a licence may be missing"}
}
