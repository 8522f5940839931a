package schema

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

func TestEveryKindOfEventIsListed(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "event.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if id, ok := v.Type.(*ast.Ident); !ok || id.Name != "EventKind" {
				continue
			}
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			n++
			if !slices.Contains(EventKinds, EventKind(text)) {
				t.Errorf("EventKinds lacks %s", text)
			}
		}
	}
	if n < 50 || n != len(EventKinds) {
		t.Errorf("%d kinds, %d listed", n, len(EventKinds))
	}
}

func TestAWebhookWantsKindsAndWholeSubjects(t *testing.T) {
	t.Parallel()
	w := Webhook{Events: []string{"job.state", "repair.*"}}
	for kind, want := range map[EventKind]bool{EventJobState: true, EventJobReason: false, EventRepairState: true, EventRepairOpened: true, EventRMA: false} {
		if w.Wants(kind) != want {
			t.Errorf("%s: %t, want %t", kind, !want, want)
		}
	}
	if got := (Webhook{Events: []string{"repair.*"}}).Kinds(); !slices.Equal(got, []EventKind{EventRepairOpened, EventRepairState, EventRepairNews, EventRepairDone, EventRepairPhoto}) {
		t.Errorf("repair.* is %v", got)
	}
}
