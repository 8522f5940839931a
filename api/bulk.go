package api

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"gpupool/api/contract"
	"gpupool/schema"
)

const maxServers = 10_000 // at once

// readServers reads a bulk enrolment as JSON, YAML or CSV. All three become JSON objects that one strict decoder reads,
// so that the same mistake gets the same answer, with the entry's number: servers[3].serial.
func readServers(c *gin.Context) ([]contract.NewServer, error) {
	b, err := readBody(c, maxBulk)
	if err != nil {
		return nil, err
	}
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")) // editors and spreadsheets put a byte order mark there
	var entries []json.RawMessage
	switch m := mediaType(c); m {
	case "application/json":
		var list struct {
			Servers []json.RawMessage `json:"servers"`
		}
		err = strict(b, &list, "")
		entries = list.Servers
	case "application/yaml", "application/x-yaml", "text/yaml":
		entries, err = yamlServers(b)
	case "text/csv":
		entries, err = csvServers(b)
	default:
		err = &schema.Error{Code: schema.CodeInvalid, Field: "Content-Type", Message: fmt.Sprintf("%q is not taken here", m), Hint: "application/json, application/yaml or text/csv"}
	}
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 || len(entries) > maxServers {
		return nil, schema.Invalid("servers", len(entries), fmt.Sprintf("a list of 1 to %d servers", maxServers))
	}
	out := make([]contract.NewServer, len(entries))
	for i, e := range entries {
		at := fmt.Sprintf("servers[%d].", i)
		if err := strict(e, &out[i], at); err != nil {
			return nil, err
		}
		if err := fitsJSON(e, newServerSchema(), at); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// yamlServers reads `servers:` of one YAML document. Anchors and aliases are refused: a few lines of them can unfold
// to gigabytes.
func yamlServers(b []byte) ([]json.RawMessage, error) {
	invalid := func(err error) error {
		first, _, _ := strings.Cut(yaml.FormatError(err, false, false), "\n")
		return &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: "it is not the YAML that is wanted: " + first, Hint: "one document with `servers:` and a list"}
	}
	tokens := lexer.Tokenize(string(b))
	if nested(tokens) {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: "it is nested too deep", Hint: fmt.Sprintf("at most %d levels", maxDepth)}
	}
	f, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, invalid(err)
	}
	if len(f.Docs) != 1 {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: fmt.Sprintf("it holds %d YAML documents", len(f.Docs)), Hint: "one document with `servers:` and a list"}
	}
	v := &yamlRules{}
	ast.Walk(v, f.Docs[0])
	if v.err != nil {
		return nil, v.err
	}
	var doc map[string]any
	if err := yaml.NewDecoder(bytes.NewReader(b)).Decode(&doc); err != nil {
		return nil, invalid(err)
	}
	for name := range doc {
		if name != "servers" {
			return nil, &schema.Error{Code: schema.CodeInvalid, Field: name, Message: "there is no such field", Hint: "only `servers:` is at the top"}
		}
	}
	list, ok := doc["servers"].([]any)
	if !ok {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "servers", Message: "it is not a list", Hint: "one entry a server, each beginning with `- name:`"}
	}
	out := make([]json.RawMessage, len(list))
	for i, e := range list {
		if out[i], err = json.Marshal(e); err != nil {
			return nil, &schema.Error{Code: schema.CodeInvalid, Field: fmt.Sprintf("servers[%d]", i), Message: "it can't be read: " + err.Error(), Hint: "names and plain values only"}
		}
	}
	return out, nil
}

// nested reports whether brackets, or entries on one line, go deeper than any enrolment: the parser's time grows with the
// square of the depth, and a hundred kilobytes of `- - - -` would take it a minute.
func nested(tokens token.Tokens) bool {
	depth, line, entries := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType:
			if t.Position.Line != line {
				line, entries = t.Position.Line, 0
			}
			entries++
		default:
		}
		if depth > maxDepth || entries > maxDepth {
			return true
		}
	}
	return false
}

// yamlRules finds what may not stand in an enrolment, the first of it.
type yamlRules struct{ err error }

func (v *yamlRules) Visit(n ast.Node) ast.Visitor {
	if n == nil || v.err != nil { // a document of nothing but marks holds nil
		return v
	}
	switch n.Type() {
	case ast.AnchorType, ast.AliasType, ast.MergeKeyType:
		v.err = &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: "it holds a YAML anchor or alias", Hint: "write each server out"}
	case ast.IntegerType, ast.FloatType, ast.InfinityType, ast.NanType:
		// 010 is 8 to YAML 1.1 and 10 to YAML 1.2, and 8.0 would lose its fraction on the way: so only what all read alike.
		if text := n.GetToken().Value; !whole(text) {
			v.err = schema.Invalid(strings.TrimPrefix(n.GetPath(), "$."), json.Number(text), "a whole number in plain digits; text that looks like a number goes in quotes")
		}
	default:
	}
	return v
}

// csvKinds says of each column, by its name in the contract, what kind of value it holds.
var csvKinds = func() map[string]reflect.Kind {
	out := map[string]reflect.Kind{}
	t := reflect.TypeFor[contract.NewServer]()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		out[name] = t.Field(i).Type.Kind()
	}
	return out
}()

// csvServers reads a header line and one server a line. An empty cell is an absent field.
func csvServers(b []byte) ([]json.RawMessage, error) {
	r := csv.NewReader(bytes.NewReader(b))
	r.TrimLeadingSpace = true
	invalid := func(err error) error {
		return &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: "it is not the CSV that is wanted: " + err.Error(), Hint: "a header line with the field names, then one server a line"}
	}
	header, err := r.Read()
	if err != nil {
		return nil, invalid(err)
	}
	seen := map[string]bool{}
	for i, name := range header {
		header[i] = strings.TrimSpace(name)
		if header[i] == "" {
			return nil, &schema.Error{Code: schema.CodeInvalid, Field: fmt.Sprintf("column %d", i+1), Message: "the column has no name", Hint: "see NewServer in /openapi.yaml"}
		}
		if _, known := csvKinds[header[i]]; !known {
			return nil, &schema.Error{Code: schema.CodeInvalid, Field: header[i], Message: "there is no such column", Hint: "see NewServer in /openapi.yaml"}
		}
		if seen[header[i]] {
			return nil, &schema.Error{Code: schema.CodeInvalid, Field: header[i], Message: "the column is there twice", Hint: "each column once"}
		}
		seen[header[i]] = true
	}
	var out []json.RawMessage
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, invalid(err)
		}
		if len(out) >= maxServers {
			return nil, schema.Invalid("servers", "more", fmt.Sprintf("at most %d servers at once", maxServers))
		}
		entry := map[string]any{}
		for i, cell := range row {
			cell = strings.TrimSpace(cell)
			if cell == "" {
				continue
			}
			switch csvKinds[header[i]] {
			case reflect.Slice:
				entry[header[i]] = strings.Fields(cell)
			case reflect.Int, reflect.Int64:
				if !whole(cell) {
					return nil, schema.Invalid(fmt.Sprintf("servers[%d].%s", len(out), header[i]), cell, "a whole number")
				}
				entry[header[i]] = json.Number(cell)
			case reflect.Bool:
				if cell != "true" && cell != "false" {
					return nil, schema.Invalid(fmt.Sprintf("servers[%d].%s", len(out), header[i]), cell, "true or false")
				}
				entry[header[i]] = cell == "true"
			default:
				entry[header[i]] = cell
			}
		}
		j, err := json.Marshal(entry)
		if err != nil {
			return nil, invalid(err)
		}
		out = append(out, j)
	}
}

// whole reports whether s is a JSON number without fraction and exponent.
func whole(s string) bool {
	d := strings.TrimPrefix(s, "-")
	if d == "" || len(d) > 1 && d[0] == '0' {
		return false
	}
	return strings.Trim(d, "0123456789") == ""
}
