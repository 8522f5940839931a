package console

import (
	"net/http"
	"slices"
	"strings"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/schema"
)

func breakerPage(v *visit) { v.showBreaker(nil) }

func (v *visit) showBreaker(n *notice) {
	id := v.r.PathValue("breaker")
	l, err := call.Do[contract.BreakerList](v.api.ListBreakers(v.r.Context(), &contract.ListBreakersParams{All: opt(true)}))
	if err != nil {
		v.fail(err)
		return
	}
	i := slices.IndexFunc(l.Items, func(b schema.Breaker) bool { return b.ID == id })
	if i < 0 {
		v.fail(schema.NotFound("breaker", id))
		return
	}
	b := l.Items[i]
	shape := "open"
	if b.ResetAt != 0 {
		shape = "reset"
	}
	v.show(page{title: "Breaker of " + b.Scope, path: "/ui/", at: "/ui/breakers/" + id, shape: shape, notice: n}, breakerView(v, b), breakerForm(v, b))
}

func breakerDo(v *visit) {
	id := v.r.PathValue("breaker")
	v.do(map[string]func() (*http.Response, error){
		"reset": func() (*http.Response, error) {
			return v.api.ResetBreaker(v.r.Context(), id, contract.WithReason{Reason: strings.TrimSpace(v.again("reason"))})
		},
	}, "/ui/breakers/"+id, v.showBreaker)
}

func mayReset(v *visit) bool {
	return v.may("POST", "/v1/health/breakers/:breaker/actions/reset")
}
