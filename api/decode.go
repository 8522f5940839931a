package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"gpupool/schema"
)

// inTime is a request's body that must come within a time. Whoever reads it to its end, or nobody: a body that is not read
// is waited for by net/http when it answers, and that ends with the deadline too.
type inTime struct {
	io.ReadCloser
	rc *http.ResponseController
}

// bounded gives the request's body its deadline.
func bounded(c *gin.Context, d time.Duration) {
	if c.Request.Body == nil || c.Request.Body == http.NoBody {
		return
	}
	rc := http.NewResponseController(c.Writer)
	if rc.SetReadDeadline(time.Now().Add(d)) == nil { // the console's own calls have none: their body is here
		c.Request.Body = inTime{c.Request.Body, rc}
	}
}

// Read takes the deadline away at the end of the body: what follows is an answer, which may take hours.
func (b inTime) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.rc.SetReadDeadline(time.Time{}) // it could be set before
	}
	return n, err
}

// readBody reads a request's body of at most limit bytes of text.
func readBody(c *gin.Context, limit int64) ([]byte, error) {
	b, err := readBytes(c, limit)
	if err == nil && !utf8.Valid(b) { // decoders would put U+FFFD in its place: another text than was sent
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: "it is not UTF-8", Hint: "text in UTF-8"}
	}
	return b, err
}

func readBytes(c *gin.Context, limit int64) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, limit))
	var big *http.MaxBytesError
	if errors.As(err, &big) {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: fmt.Sprintf("it is longer than %d bytes", limit), Hint: "send less at once"}
	}
	if err != nil {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: "it ended early", Hint: "send it whole, and without a pause", Err: err}
	}
	return b, nil
}

// mediaType is the request's content type without its parameters.
func mediaType(c *gin.Context) string {
	m, _, err := mime.ParseMediaType(c.GetHeader("Content-Type"))
	if err != nil {
		return ""
	}
	return m
}

// decode reads a JSON body into v and is strict; optional says that no body means the zero value.
func decode(c *gin.Context, v any, optional bool) error {
	b, err := readBody(c, maxBody)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(b)) == 0 && optional {
		return nil
	}
	if m := mediaType(c); m != "application/json" { // also keeps other sites' plain forms out
		return &schema.Error{Code: schema.CodeInvalid, Field: "Content-Type", Message: fmt.Sprintf("%q is not taken here", m), Hint: "application/json"}
	}
	err = strict(b, v, "")
	var vague *schema.Error
	if err == nil || errors.As(err, &vague) && vague.Field == "body" && once(b, "") == nil {
		// The contract says which field it is, where the decoder can't.
		if named := checkBody(c, b); named != nil {
			return named
		}
	}
	return err
}

// strict decodes one JSON value: an unknown field, a field twice, a number that does not fit exactly and text behind
// the value are refused. at is put before the names of fields.
func strict(b []byte, v any, at string) error {
	if err := once(b, at); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		return nil
	}
	var kind *json.UnmarshalTypeError
	var moment *time.ParseError
	switch {
	case errors.As(err, &kind):
		if kind.Field == "" {
			return &schema.Error{Code: schema.CodeInvalid, Field: strings.TrimSuffix(at, "."), Message: "it is a " + kind.Value, Hint: "an object"}
		}
		value, right := kind.Value, "a "+goWord(kind.Type.String())
		if n, ok := strings.CutPrefix(value, "number "); ok {
			return schema.Invalid(at+kind.Field, json.Number(n), right+", written without fraction or exponent, in range")
		}
		return &schema.Error{Code: schema.CodeInvalid, Field: at + kind.Field, Message: "it is a " + value, Hint: right}
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		name := strings.Trim(strings.TrimPrefix(err.Error(), "json: unknown field "), `"`)
		return &schema.Error{Code: schema.CodeInvalid, Field: at + name, Message: "there is no such field", Hint: "see /openapi.yaml; names are in lower case"}
	case errors.As(err, &moment):
		return &schema.Error{Code: schema.CodeInvalid, Field: cmpOr(strings.TrimSuffix(at+holder(b, moment.Value), "."), "body"), Message: fmt.Sprintf("%q is not a moment", moment.Value), Hint: "RFC 3339, like 2026-11-30T08:00:00Z"}
	}
	return &schema.Error{Code: schema.CodeInvalid, Field: cmpOr(strings.TrimSuffix(at, "."), "body"), Message: "it is not the JSON that is wanted: " + strings.TrimPrefix(err.Error(), "json: "), Hint: "see /openapi.yaml"}
}

// holder is the field of an object that holds text: a moment that can't be read does not say where it stood.
func holder(b []byte, text string) string {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(b, &fields) // it was read as JSON before; another kind of value holds no field
	for name, raw := range fields {
		var v string
		if json.Unmarshal(raw, &v) == nil && v == text {
			return name
		}
	}
	return ""
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func goWord(t string) string {
	switch {
	case strings.HasPrefix(t, "int"):
		return "whole number"
	case t == "bool":
		return "true or false"
	case strings.HasPrefix(t, "["):
		return "list"
	case strings.HasPrefix(t, "map") || strings.HasPrefix(t, "contract."):
		return "object"
	default:
		return "text"
	}
}

// maxDepth is deeper than any body of the contract.
const maxDepth = 16

// once walks the tokens of one JSON value and refuses a field that comes twice in an object: which one counts is not
// said by RFC 8259, so a reader behind us could see another value than we checked. It refuses NUL in any text too:
// PostgreSQL keeps none, and a program's arguments end at it.
func once(b []byte, at string) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	field := cmpOr(strings.TrimSuffix(at, "."), "body")
	bad := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return &schema.Error{Code: schema.CodeInvalid, Field: field, Message: "it is empty or ends early", Hint: "one whole JSON value"}
		}
		return &schema.Error{Code: schema.CodeInvalid, Field: field, Message: "it is not JSON: " + err.Error(), Hint: "one JSON value"}
	}
	type level struct {
		names map[string]bool // of an object; nil for a list
		name  bool            // the next token is a name
		last  string          // the name that was read last
		index int             // of a list: how many of its values are behind us
	}
	var stack []level
	for {
		t, err := d.Token()
		if err != nil {
			return bad(err)
		}
		top := len(stack) - 1
		if text, ok := t.(string); ok && strings.ContainsRune(text, 0) {
			path := ""
			for _, l := range stack {
				switch {
				case l.names == nil:
					path += fmt.Sprintf("[%d]", l.index)
				case l.last != "":
					path += "." + l.last
				}
			}
			return schema.Invalid(cmpOr(at+strings.TrimPrefix(path, "."), field), text, "text without NUL bytes")
		}
		if delim, ok := t.(json.Delim); ok {
			switch delim {
			case '{':
				if top >= 0 {
					stack[top].name = stack[top].names != nil
				}
				stack = append(stack, level{names: map[string]bool{}, name: true})
			case '[':
				if top >= 0 {
					stack[top].name = stack[top].names != nil
				}
				stack = append(stack, level{})
			default:
				stack = stack[:top]
			}
			if len(stack) > maxDepth {
				return &schema.Error{Code: schema.CodeInvalid, Field: field, Message: "it is nested too deep", Hint: fmt.Sprintf("at most %d levels", maxDepth)}
			}
		} else if top >= 0 && stack[top].names != nil {
			if stack[top].name {
				name, _ := t.(string)
				if stack[top].names[name] {
					return &schema.Error{Code: schema.CodeInvalid, Field: at + name, Message: "it is there twice", Hint: "each field once"}
				}
				stack[top].names[name], stack[top].last = true, name
			}
			stack[top].name = !stack[top].name
		}
		if len(stack) == 0 {
			break
		}
		if in := &stack[len(stack)-1]; in.names == nil && len(stack)-1 <= top {
			in.index++ // a value of this list is over
		}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return &schema.Error{Code: schema.CodeInvalid, Field: field, Message: "there is more behind the JSON value", Hint: "one JSON value"}
	}
	return nil
}
