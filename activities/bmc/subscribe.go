package bmc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/schemas"
)

// Subscribe has the BMC push its events (DSP0266 13.5.2), for BMCs that have no stream. name tells our subscription from
// other people's, which are left alone. destination says where events shall go: it is given the address that a subscription
// of ours has already, "" where there is none, and returns that one where it still holds, else a new one. Ours is made where
// it is missing (a restarted BMC forgets them) and is never there twice. ErrUnsupported is a BMC that pushes nothing.
func (c *Client) Subscribe(ctx context.Context, name string, destination func(ctx context.Context, have string) (string, error)) (err error) {
	defer c.conn.named("subscribe to events of", &err)
	service, uri, err := c.subscriptions(ctx)
	if err != nil {
		return err
	}
	mine, err := c.subscribed(ctx, uri, name)
	if err != nil {
		return err
	}
	have := ""
	if len(mine) > 0 {
		have = mine[0].str("Destination")
	}
	to, err := destination(ctx, have)
	if err != nil {
		return err
	}
	kept := slices.IndexFunc(mine, func(r *resource) bool { return r.str("Destination") == to })
	if kept < 0 {
		want := map[string]any{"Destination": to, "Protocol": string(schemas.RedfishEventDestinationProtocol), "Context": name}
		// HPE wants the types named, OpenBMC doesn't know the property: who lists them wants them.
		if types := stringsOf(service.at("EventTypesForSubscription")); types != nil {
			want["EventTypes"] = types
			if slices.Contains(types, "Alert") {
				want["EventTypes"] = []string{"Alert"}
			}
		}
		if err := c.makeSubscription(ctx, uri, want); err != nil {
			return err
		}
	}
	var errs []error
	for i, r := range mine {
		if i != kept {
			errs = append(errs, c.conn.delete(ctx, r.uri))
		}
	}
	return errors.Join(errs...)
}

// makeSubscription posts one. Its address is a secret, so what the BMC says about it is not told on.
func (c *Client) makeSubscription(ctx context.Context, uri string, want map[string]any) error {
	body, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encode subscription: %w", err)
	}
	a, err := c.conn.do(ctx, http.MethodPost, uri, nil, body)
	if err != nil {
		return err
	}
	if a.status < 200 || a.status > 299 {
		e := c.conn.refusal("", uri, asGofish(a))
		secret, _ := want["Destination"].(string)
		e.Detail, e.Args = strings.ReplaceAll(e.Detail, secret, "(the address given)"), nil
		return e
	}
	return nil
}

// Unsubscribe ends our subscription. That there is none is no error.
func (c *Client) Unsubscribe(ctx context.Context, name string) (err error) {
	defer c.conn.named("end the events of", &err)
	_, uri, err := c.subscriptions(ctx)
	if errors.Is(err, ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	mine, err := c.subscribed(ctx, uri, name)
	errs := []error{err}
	for _, r := range mine {
		errs = append(errs, c.conn.delete(ctx, r.uri))
	}
	return errors.Join(errs...)
}

// subscriptions finds the event service and its subscriptions.
func (c *Client) subscriptions(ctx context.Context) (*resource, string, error) {
	service, err := c.eventService(ctx)
	if err != nil {
		return nil, "", err
	}
	uri := service.link("Subscriptions")
	if on := flag(service, "ServiceEnabled"); uri == "" || on != nil && !*on {
		return nil, "", &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: service.uri, Detail: "no subscriptions"}
	}
	return service, uri, nil
}

// eventService reads it; ErrUnsupported where there is none.
func (c *Client) eventService(ctx context.Context) (*resource, error) {
	root, err := c.conn.root(ctx)
	if err != nil {
		return nil, err
	}
	r, err := c.conn.get(ctx, orDefault(root.link("EventService"), "/redfish/v1/EventService"))
	if isKind(err, ErrNotFound) {
		return nil, &Error{Kind: ErrUnsupported, Address: c.conn.address, Detail: "no event service"}
	}
	return r, err
}

// subscribed lists our subscriptions.
func (c *Client) subscribed(ctx context.Context, uri, name string) ([]*resource, error) {
	list, err := c.conn.collect(ctx, uri, lenient)
	return slices.DeleteFunc(list, func(r *resource) bool { return r.str("Context") != name }), err
}
