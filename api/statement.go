package api

import (
	"bytes"
	"cmp"
	_ "embed"
	"html/template"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

//go:embed statement.html
var statementHTML string

var statementPage = template.Must(template.New("statement").Funcs(template.FuncMap{
	"hours": func(ms int64) string { return strconv.FormatFloat(float64(ms)/usage.Hour, 'f', 2, 64) },
	"money": func(v *int64, currency string) string {
		if v == nil {
			return "–"
		}
		return strconv.FormatFloat(float64(*v)/1e6, 'f', 2, 64) + " " + currency
	},
}).Parse(statementHTML))

// statement is what the page shows.
type statement struct {
	Tenant, Month, Zone string
	From, To            string
	Made                string
	Open                bool // the month is not over, or credits may still come
	Rows                []store.UsageRow
	Total               store.UsageRow
	Corrections         []schema.LedgerRow
}

// GetStatement is a tenant's month as one page that needs nothing else: to print, or to send.
func (s *Server) GetStatement(c *gin.Context, p contract.GetStatementParams) {
	t, pr, err := scope(c, p.Tenant, nil)
	if err == nil && t == "" {
		err = schema.Invalid("tenant", "", "the tenant whose statement it is")
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	if _, err := s.c.Store.Tenant(ctx, t); err != nil {
		s.fail(c, err)
		return
	}
	w, zone, err := s.month(c, p.Month, p.Zone)
	if err != nil {
		s.fail(c, err)
		return
	}
	policy, err := s.c.Store.ChargePolicy(ctx)
	if err != nil {
		s.fail(c, err)
		return
	}
	now, err := s.c.Store.Metered(ctx)
	if err != nil {
		s.fail(c, err)
		return
	}
	st := statement{Tenant: t, Month: p.Month, Zone: zone.String(), From: w.Start.Time().In(zone).Format(time.RFC1123Z), To: w.End.Time().In(zone).Format(time.RFC1123Z), Made: now.Time().In(zone).Format(time.RFC1123Z),
		Open: w.End > policy.OpenFrom(now, zone)}
	q := store.UsageQuery{Tenant: t, Project: pr, From: w.Start, To: max(w.Start, min(w.End, now+1)), By: []string{"project", "spec", "model"}, Live: true}
	if st.Rows, err = s.c.Store.Usage(ctx, q); err != nil {
		s.fail(c, err)
		return
	}
	q.By = nil
	total, err := s.c.Store.Usage(ctx, q)
	if err != nil {
		s.fail(c, err)
		return
	}
	for _, r := range total {
		st.Total = r
	}
	if st.Corrections, err = s.c.Store.Corrections(ctx, t, pr, w); err != nil {
		s.fail(c, err)
		return
	}
	var b bytes.Buffer
	if err := statementPage.Execute(&b, st); err != nil {
		s.fail(c, err)
		return
	}
	c.Header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	c.Header("Content-Disposition", `inline; filename="statement-`+cmp.Or(t, "pool")+"-"+p.Month+`.html"`)
	c.Data(http.StatusOK, "text/html; charset=utf-8", b.Bytes())
}
