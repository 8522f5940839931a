package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"gpupool/schema"
)

// inputs walks every operation of the contract.
func inputs(t *testing.T, each func(t *testing.T, method, path string, query map[string]*openapi3.Schema, body *openapi3.Schema)) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range doc.Paths.InMatchingOrder() {
		item := doc.Paths.Value(path)
		for method, op := range item.Operations() {
			query := map[string]*openapi3.Schema{}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				if p.Value.In == "query" {
					query[p.Value.Name] = p.Value.Schema.Value
				}
			}
			var body *openapi3.Schema
			if op.RequestBody != nil {
				if m := op.RequestBody.Value.Content.Get("application/json"); m != nil { // else it is a picture
					body = m.Schema.Value
				}
			}
			n++
			t.Run(method+" "+path, func(t *testing.T) { each(t, method, path, query, body) })
		}
	}
	if n < 50 {
		t.Fatalf("the contract has %d operations", n)
	}
}

// sample is a value that a schema allows.
func sample(s *openapi3.Schema) any {
	switch {
	case len(s.Enum) > 0:
		return s.Enum[0]
	case s.Type.Includes("integer"):
		if s.Min != nil {
			return *s.Min
		}
		return 1
	case s.Type.Includes("boolean"):
		return true
	case s.Type.Includes("array"):
		return []any{sample(s.Items.Value)}
	case s.Format == "date-time":
		return "2026-11-30T08:00:00Z"
	case s.Type.Includes("object"):
		out := map[string]any{}
		for name, p := range s.Properties {
			out[name] = sample(p.Value)
		}
		return out
	}
	return "a"
}

// wrong are values that a schema does not allow, by what is wrong with them.
func wrong(s *openapi3.Schema) map[string]any {
	out := map[string]any{"an object of nothing known": map[string]any{"x": 1}}
	switch {
	case len(s.Enum) > 0:
		out["none of the list"] = "paint"
	case s.Type.Includes("integer"):
		out["text"], out["a fraction"] = "1", json.Number("1.5")
		if s.Min != nil {
			out["one less"] = *s.Min - 1
		}
		if s.Max != nil {
			out["one more"] = json.Number(fmt.Sprint(int64(*s.Max) + 1))
		}
	case s.Type.Includes("boolean"):
		out["text"] = "true"
	case s.Type.Includes("array"):
		out["text"] = "a"
		if s.MinItems > 0 {
			out["none"] = []any{}
		}
		for what, v := range wrong(s.Items.Value) {
			out["an entry: "+what] = []any{v}
		}
	case s.Type.Includes("object"):
		delete(out, "an object of nothing known")
		out["text"] = "a"
	case s.Format == "date-time":
		out["no moment"] = "tomorrow"
	default:
		out["a number"], out["NUL"] = 1, "a\x00b"
		out["too long"] = strings.Repeat("a", int(*s.MaxLength)+1)
		if s.Pattern != "" {
			out["a control character"] = "a\x1bb"
		}
		if s.MinLength > 0 {
			out["empty"] = ""
		}
	}
	return out
}

// TestEveryInputOfTheContractIsBounded: a text or list without a bound is taken until the memory ends.
func TestEveryInputOfTheContractIsBounded(t *testing.T) {
	t.Parallel()
	var bounded func(t *testing.T, at string, s *openapi3.Schema)
	bounded = func(t *testing.T, at string, s *openapi3.Schema) {
		switch {
		case len(s.Enum) > 0 || s.Format == "date-time":
		case s.Type.Includes("string") && s.MaxLength == nil:
			t.Errorf("%s: text without maxLength", at)
		case s.Type.Includes("integer") && s.Min == nil:
			t.Errorf("%s: a number without a minimum", at)
		case s.Type.Includes("array"):
			if s.MaxItems == nil {
				t.Errorf("%s: a list without maxItems", at)
			}
			bounded(t, at+"[]", s.Items.Value)
		case s.Type.Includes("object"):
			if s.AdditionalProperties.Schema == nil && (s.AdditionalProperties.Has == nil || *s.AdditionalProperties.Has) {
				t.Errorf("%s: unknown fields are allowed", at)
			}
			for name, p := range s.Properties {
				bounded(t, at+"."+name, p.Value)
			}
		}
	}
	inputs(t, func(t *testing.T, _, _ string, query map[string]*openapi3.Schema, body *openapi3.Schema) {
		for name, s := range query {
			bounded(t, "?"+name, s)
		}
		if body != nil {
			bounded(t, "body", body)
		}
	})
}

// TestEveryInputIsHeldToTheContract sends each operation every kind of wrong value for each of its fields and parameters,
// made from the contract itself: each is a 400 that names the field.
func TestEveryInputIsHeldToTheContract(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	before := p.records()
	inputs(t, func(t *testing.T, method, path string, query map[string]*openapi3.Schema, body *openapi3.Schema) {
		p := &pool{T: t, store: p.store, server: p.server, url: p.url, http: p.http, tokens: p.tokens}
		at := strings.NewReplacer("{", "no-", "}", "").Replace(path)
		known := "takes no parameters"
		if len(query) > 0 {
			known = strings.Join(slices.Sorted(maps.Keys(query)), ", ")
		}
		wantProblem(t, p.op(method, at+"?colour=red", ""), schema.CodeInvalid, "colour", known)
		wantProblem(t, p.op(method, at+"?a%zz=1", ""), schema.CodeInvalid, "query")
		for name, s := range query {
			wantProblem(t, p.op(method, at+"?"+name+"=1&"+name+"=2", ""), schema.CodeInvalid, name, "twice")
			wantProblem(t, p.op(method, at+"?"+name+"=a%00b", ""), schema.CodeInvalid, name)
			wantProblem(t, p.op(method, at+"?"+name+"=%ff", ""), schema.CodeInvalid, name)
			for what, v := range wrong(s) {
				text, is := v.(string)
				if n, number := v.(json.Number); number {
					text, is = n.String(), true
				}
				if f, number := v.(float64); number {
					text, is = fmt.Sprint(int64(f)), true
				}
				if !is || text == "" || what == "text" && !s.Type.Includes("string") {
					continue // an address holds text only
				}
				t.Run(name+", "+what, func(t *testing.T) {
					wantProblem(t, p.op(method, at+"?"+url.Values{name: {text}}.Encode(), ""), schema.CodeInvalid, name)
				})
			}
		}
		if body == nil {
			return
		}
		send := func(t *testing.T, field string, v any) {
			t.Helper()
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			a := p.op(method, at, string(b))
			if a.status != http.StatusBadRequest {
				t.Fatalf("%s was answered %d: %s", b, a.status, a.body)
			}
			got := a.problem(t)
			inner, _, _ := strings.Cut(strings.TrimPrefix(got.Field, "servers[0]."), "[") // of a list, the entry is named
			inner, _, _ = strings.Cut(inner, ".")
			if inner != field {
				t.Fatalf("%s was refused for %q: %s", b, got.Field, got.Detail)
			}
			if got.Hint == "" {
				t.Errorf("%s: %s does not say what would be right", b, got.Detail)
			}
		}
		wrap := func(v map[string]any) any { return v }
		if list := body.Properties["servers"]; list != nil && list.Value.Items.Value.Type.Includes("object") {
			body = list.Value.Items.Value
			wrap = func(v map[string]any) any { return map[string]any{"servers": []any{v}} }
		}
		for name, f := range body.Properties {
			for what, v := range wrong(f.Value) {
				t.Run(name+", "+what, func(t *testing.T) {
					good := sample(body).(map[string]any)
					good[name] = v
					send(t, name, wrap(good))
				})
			}
			if slices.Contains(body.Required, name) {
				t.Run(name+", missing", func(t *testing.T) {
					good := sample(body).(map[string]any)
					delete(good, name)
					send(t, name, wrap(good))
				})
			}
		}
		good := sample(body).(map[string]any)
		good["colour"] = "red"
		send(t, "colour", wrap(good))
		wantProblem(t, p.op(method, at, "{\"x\":\"\xff\"}"), schema.CodeInvalid, "body", "UTF-8")
		deep := bytes.Repeat([]byte("["), 10_000)
		wantProblem(t, p.op(method, at, string(deep)), schema.CodeInvalid, "body", "deep")
	})
	if after := p.records(); after != before {
		t.Errorf("before %s, after %s: something was written", before, after)
	}
}
