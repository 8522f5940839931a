package accelerator

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

// TestEveryNameIsInTheSchema reads the constants of metric.go.
func TestEveryNameIsInTheSchema(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "metric.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(file, func(x ast.Node) bool {
		decl, ok := x.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			return true
		}
		for _, spec := range decl.Specs {
			for _, v := range spec.(*ast.ValueSpec).Values {
				lit, ok := v.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					continue
				}
				name, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				n++
				if !slices.ContainsFunc(Metrics, func(m Metric) bool { return m.Name == name }) {
					t.Errorf("%s is in no line of Metrics", name)
				}
			}
		}
		return false
	})
	if n != len(Metrics) {
		t.Errorf("%d constants and %d lines", n, len(Metrics))
	}
}
