package bmc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// get reads one resource.
func (c *conn) get(ctx context.Context, uri string) (*resource, error) {
	if uri == "" {
		return nil, &Error{Kind: ErrNotFound, Address: c.address, Detail: "the bmc gives no link to it"}
	}
	a, err := c.do(ctx, http.MethodGet, uri, nil, nil)
	if err != nil {
		return nil, err
	}
	if a.status == http.StatusNotFound && !strings.HasSuffix(uri, "/") && !strings.Contains(uri, "?") {
		// Some answer only with the trailing slash (MAAS met such).
		if again, err := c.do(ctx, http.MethodGet, uri+"/", nil, nil); err == nil && again.status == http.StatusOK {
			a = again
		}
	}
	if a.status != http.StatusOK {
		return nil, c.refusal("", uri, asGofish(a))
	}
	return c.decode(uri, a)
}

// getChanged reads a resource where it isn't as it was under an entity tag (RFC 9110 section 13.1.2). Firmware that chokes on
// the condition is asked without.
func (c *conn) getChanged(ctx context.Context, uri, etag string) (r *resource, same bool, err error) {
	a, err := c.do(ctx, http.MethodGet, uri, http.Header{"If-None-Match": {etag}}, nil)
	switch {
	case err != nil:
		return nil, false, err
	case a.status == http.StatusNotModified:
		return nil, true, nil
	case a.status == http.StatusOK:
		r, err = c.decode(uri, a)
		return r, false, err
	}
	r, err = c.get(ctx, uri)
	return r, false, err
}

const (
	// maxPages bounds a collection whose next links never end.
	maxPages = 200
	// maxMembers bounds one whose members do: each may cost a request. The longest captured has 5,000, a log of Dell's.
	maxMembers = 20_000
)

// members lists a collection: every page, each member once. A BMC that sends all of them on the first page and links to
// further pages that repeat them (DGX H100 sensors) costs one page more. A collection that isn't there is empty.
func (c *conn) members(ctx context.Context, uri string) ([]*resource, error) {
	if uri == "" {
		return nil, nil
	}
	first, err := c.get(ctx, uri)
	if err != nil {
		if statusIs(err, http.StatusNotFound) {
			return nil, nil
		}
		return nil, err
	}
	return c.membersFrom(ctx, first)
}

// membersFrom is members of a collection whose first page was read; nil is one that isn't there.
func (c *conn) membersFrom(ctx context.Context, r *resource) ([]*resource, error) {
	var out []*resource
	seen := map[string]bool{}
	pages := map[string]bool{}
	for r != nil {
		pages[normalURI(r.uri)] = true
		before := len(out)
		list, _ := r.at("Members").([]any)
		for _, m := range list {
			body, ok := m.(map[string]any)
			if !ok {
				continue
			}
			id := linkOf(m)
			key := normalURI(id)
			if id == "" { // log entries without one exist; they are told apart by Id
				key = fmt.Sprint(body["Id"], body["MemberId"], body["Created"], body["Message"])
			}
			if seen[key] {
				continue
			}
			seen[key] = true
			if out = append(out, &resource{uri: id, body: body}); len(out) > maxMembers {
				return nil, &Error{Kind: ErrBody, Address: c.address, URI: r.uri, Detail: fmt.Sprintf("the collection has more than %d members", maxMembers)}
			}
		}
		page := nextPage(r)
		if len(out) == before || page == "" || pages[normalURI(page)] || len(pages) >= maxPages {
			break // the end, or no progress
		}
		var err error
		if r, err = c.get(ctx, page); err != nil {
			if statusIs(err, http.StatusNotFound) {
				break
			}
			return out, err
		}
	}
	return out, nil
}

// nextPage is where a collection goes on; "" at its end.
func nextPage(r *resource) string {
	if page := r.link("Members@odata.nextLink"); page != "" {
		return page
	}
	return r.str("Members@odata.nextLink")
}

// whole reads a member that a collection gave only as a link.
func (c *conn) whole(ctx context.Context, m *resource) (*resource, error) {
	if len(m.body) > 1 {
		return m, nil
	}
	return c.get(ctx, m.uri)
}

// collect reads every member of a collection. A member that can't be read is given to skip, which may end it all.
func (c *conn) collect(ctx context.Context, uri string, skip func(uri string, err error) error) ([]*resource, error) {
	list, err := c.members(ctx, uri)
	if err != nil {
		return nil, err
	}
	return c.wholes(ctx, list, skip)
}

// wholes reads the members that a collection gave only as links.
func (c *conn) wholes(ctx context.Context, list []*resource, skip func(uri string, err error) error) ([]*resource, error) {
	out := make([]*resource, 0, len(list))
	for _, m := range list {
		r, err := c.whole(ctx, m)
		if err != nil {
			if skip == nil {
				return nil, err
			}
			if err := skip(m.uri, err); err != nil {
				return nil, err
			}
			continue
		}
		out = append(out, r)
	}
	return out, nil
}

// lenient is a skip that passes over what one resource can be wrong in, and ends at what concerns the whole BMC.
func lenient(_ string, err error) error {
	if statusIs(err, http.StatusBadRequest, http.StatusForbidden, http.StatusInternalServerError) || isKind(err, ErrNotFound) || isKind(err, ErrBody) {
		return nil
	}
	return err
}

// patch changes a resource under its own entity tag. What firmware makes of If-Match differs, so the ways are tried from
// the safest down, each only after the one before was refused with 412 or 428: the tag, the tag read anew, the tag's
// strong form, "*", none.
func (c *conn) patch(ctx context.Context, uri string, change map[string]any) error {
	body, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("patch %s: %w", uri, err)
	}
	r, err := c.get(ctx, uri)
	if err != nil {
		return err
	}
	return c.withTag(ctx, http.MethodPatch, uri, r.etag, body)
}

// withTag sends a change with the ladder of entity tags.
func (c *conn) withTag(ctx context.Context, method, uri, etag string, body []byte) error {
	var last *Error
	tried := map[string]bool{}
	for rung := 0; rung < 5; rung++ {
		tag := etag
		switch rung {
		case 1: // changed under us
			if etag == "" || etag == "*" {
				continue
			}
			r, err := c.get(ctx, uri)
			if err != nil {
				return err
			}
			tag = r.etag
		case 2:
			tag = strings.TrimPrefix(etag, "W/")
		case 3:
			tag = "*"
		case 4:
			tag = ""
		}
		if tried[tag] {
			continue
		}
		tried[tag] = true
		h := http.Header{}
		if tag != "" {
			h.Set("If-Match", tag)
		}
		a, err := c.do(ctx, method, uri, h, body)
		if err != nil {
			return err
		}
		if a.status >= 200 && a.status < 300 {
			return nil
		}
		last = c.refusal("", uri, asGofish(a))
		if a.status != http.StatusPreconditionFailed && a.status != http.StatusPreconditionRequired {
			return last
		}
	}
	return last
}

// delete removes a resource. That it is gone already is no error.
func (c *conn) delete(ctx context.Context, uri string) error {
	a, err := c.do(ctx, http.MethodDelete, uri, nil, nil)
	if err != nil || a.status >= 200 && a.status < 300 || a.status == http.StatusNotFound {
		return err
	}
	return c.refusal("", uri, asGofish(a))
}

// post sends an action. The answer is returned for its Location: an action may become a task.
func (c *conn) post(ctx context.Context, uri string, payload any, header http.Header) (*answer, error) {
	body, err := json.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("post %s: %w", uri, err)
	}
	a, err := c.do(ctx, http.MethodPost, uri, header, body)
	if err != nil {
		return nil, err
	}
	if a.status < 200 || a.status > 299 {
		return a, c.refusal("", uri, asGofish(a))
	}
	return a, nil
}
