package api

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Health is the rules that judge evidence.
type Health interface {
	Rules(ctx context.Context) ([]schema.HealthRule, error)
	// ChangeRule keeps what an operator changes of a rule; a change of nothing takes an earlier one back.
	ChangeRule(ctx context.Context, c schema.RuleChange, by string) (schema.HealthRule, error)
	// Replay judges the faults since a moment by the rules in force; c, if not nil, is laid over them.
	Replay(ctx context.Context, since schema.Instant, c *schema.RuleChange) (schema.Replay, error)
}

// noHealth answers where this process has no rules.
type noHealth struct{}

var errNoHealth = &schema.Error{Code: schema.CodeUnavailable, Message: "this API has no health rules", Hint: "ask an operator to look at the API's configuration"}

func (noHealth) Rules(context.Context) ([]schema.HealthRule, error) { return nil, errNoHealth }
func (noHealth) ChangeRule(context.Context, schema.RuleChange, string) (schema.HealthRule, error) {
	return schema.HealthRule{}, errNoHealth
}
func (noHealth) Replay(context.Context, schema.Instant, *schema.RuleChange) (schema.Replay, error) {
	return schema.Replay{}, errNoHealth
}

// ListHealthRules lists them in the order in which they are asked.
func (s *Server) ListHealthRules(c *gin.Context) {
	list, err := s.c.Health.Rules(c.Request.Context())
	s.done(c, http.StatusOK, contract.HealthRuleList{Items: some(list)}, err)
}

func changeOf(rule string, in contract.RuleChange) schema.RuleChange {
	return schema.RuleChange{Rule: rule, Mode: string(in.Mode), Count: int(in.Count), Within: in.WithinMs, Above: float64(in.Above), Action: in.Action, Cure: in.Cure, Reason: in.Reason}
}

// ChangeHealthRule takes effect with the next fault.
func (s *Server) ChangeHealthRule(c *gin.Context, rule string) {
	var in contract.RuleChange
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	r, err := s.c.Health.ChangeRule(c.Request.Context(), changeOf(rule, in), me(c).Name)
	s.done(c, http.StatusOK, r, err)
}

// ReplayHealth changes nothing.
func (s *Server) ReplayHealth(c *gin.Context) {
	var in contract.ReplayRequest
	if err := decode(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	since := s.c.Store.Now().Add(-7 * 24 * time.Hour)
	if in.Since != 0 {
		since = in.Since
	}
	var change *schema.RuleChange
	if in.Change != nil {
		if in.Rule == "" {
			s.fail(c, schema.Invalid("rule", "", "the rule that the change is of"))
			return
		}
		x := changeOf(in.Rule, *in.Change)
		change = &x
	}
	ctx := c.Request.Context()
	var out schema.Replay
	err := s.known(ctx, in.Rule, "")
	if err == nil {
		out, err = s.c.Health.Replay(ctx, since, change)
	}
	s.done(c, http.StatusOK, out, err)
}

// known refuses a rule or a kind of evidence that there is none of: a silence of a misspelt one would silence nothing. Empty
// is not named.
func (s *Server) known(ctx context.Context, rule, kind string) error {
	if rule == "" && kind == "" {
		return nil
	}
	list, err := s.c.Health.Rules(ctx)
	if err != nil {
		return err
	}
	kinds := map[string]bool{}
	there := rule == ""
	for _, r := range list {
		there = there || r.Name == rule
		kinds[r.Kind] = true
	}
	switch {
	case !there:
		return schema.NotFound("rule", rule)
	case kind != "" && !kinds[kind]:
		return schema.Invalid("kind", kind, "one that rules judge: "+strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	return nil
}

// ListSilences lists those in force, or the last ones.
func (s *Server) ListSilences(c *gin.Context, p contract.ListSilencesParams) {
	list, err := s.c.Store.Silences(c.Request.Context(), !val(p.All))
	s.done(c, http.StatusOK, contract.SilenceList{Items: some(list)}, err)
}

// CreateSilence begins one.
func (s *Server) CreateSilence(c *gin.Context) {
	var in contract.NewSilence
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	x := schema.Silence{Rule: in.Rule, Kind: in.Kind, Code: in.Code, Server: in.Server, Until: in.Until, Reason: in.Reason}
	err := s.known(ctx, in.Rule, in.Kind)
	if err == nil {
		x.Accelerator, err = s.anAccelerator(ctx, in.Server, in.Accelerator)
	}
	if err == nil {
		x, err = s.c.Store.Silence(ctx, x, me(c).Name)
	}
	s.done(c, http.StatusCreated, x, err)
}

// anAccelerator is the id of one of a server's, by id, serial or slot, or of any server's, by id or serial, where none is named.
func (s *Server) anAccelerator(ctx context.Context, server, name string) (string, error) {
	if server != "" {
		v, err := s.c.Store.Server(ctx, server)
		if err != nil {
			return "", err
		}
		return s.accelerator(ctx, v, name)
	}
	if name == "" {
		return "", nil
	}
	all, err := s.c.Store.Accelerators(ctx, store.AcceleratorFilter{Removed: true})
	for _, a := range all {
		if a.ID == name || a.Serial == name {
			return a.ID, err
		}
	}
	if err == nil {
		err = schema.NotFound("accelerator", name)
	}
	return "", err
}

// EndSilence ends one before its time.
func (s *Server) EndSilence(c *gin.Context, silence string) {
	if err := s.c.Store.Unsilence(c.Request.Context(), silence, me(c).Name); err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

// ListBreakers lists those that are open, or the last ones.
func (s *Server) ListBreakers(c *gin.Context, p contract.ListBreakersParams) {
	list, err := s.c.Store.Breakers(c.Request.Context(), !val(p.All))
	s.done(c, http.StatusOK, contract.BreakerList{Items: some(list)}, err)
}

// ResetBreaker lets faults of its scope be acted on again.
func (s *Server) ResetBreaker(c *gin.Context, breaker string) {
	var in contract.WithReason
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	b, err := s.c.Store.ResetBreaker(c.Request.Context(), breaker, in.Reason, me(c).Name)
	s.done(c, http.StatusOK, b, err)
}

// GetHealthTimes measures the repairs of the last days.
func (s *Server) GetHealthTimes(c *gin.Context, p contract.GetHealthTimesParams) {
	since := s.c.Store.Now().Add(-30 * 24 * time.Hour)
	if p.Since != nil {
		since = schema.At(*p.Since)
	}
	t, err := s.c.Store.HealthTimes(c.Request.Context(), since)
	s.done(c, http.StatusOK, t, err)
}

// GetHealthHistory shows what a server's devices read by the hour.
func (s *Server) GetHealthHistory(c *gin.Context, p contract.GetHealthHistoryParams) {
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, p.Server)
	if err != nil {
		s.fail(c, err)
		return
	}
	f := store.HistoryFilter{Server: v.ID, Device: val(p.Device), Metric: val(p.Metric), Since: s.c.Store.Now().Add(-24 * time.Hour)}
	if p.Since != nil {
		f.Since = schema.At(*p.Since)
	}
	list, err := s.c.Store.DeviceHistory(ctx, f)
	s.done(c, http.StatusOK, contract.MetricHourList{Items: some(list)}, err)
}

// ListLemons lists the devices and slots that come back too often, the worst first.
func (s *Server) ListLemons(c *gin.Context) {
	list, err := s.c.Store.Lemons(c.Request.Context())
	s.done(c, http.StatusOK, contract.LemonList{Items: some(list)}, err)
}

// ClaimRepair says who works on a repair.
func (s *Server) ClaimRepair(c *gin.Context, id contract.TheRepair) {
	var in contract.RepairClaim
	if err := decode(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	if err == nil {
		r, err = s.c.Store.RepairClaim(ctx, r.ID, me(c).Name, in.Force)
	}
	s.done(c, http.StatusOK, r, err)
}

// GiveUpRepair takes the technician's word that it can't be done.
func (s *Server) GiveUpRepair(c *gin.Context, id contract.TheRepair) {
	var in contract.RepairNote
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	if err == nil && r.State != schema.RepairWaiting {
		err = schema.Conflict("repair "+r.ID+" is "+string(r.State), "that is taken while it waits for the technician")
	}
	if err == nil {
		err = s.c.Processes.CouldNotFix(ctx, r, in.Note, me(c).Name)
	}
	if err == nil {
		r, err = s.c.Store.Repair(ctx, r.ID)
	}
	s.done(c, http.StatusAccepted, r, err)
}

// DrainRepairNow asks the jobs on the server to end.
func (s *Server) DrainRepairNow(c *gin.Context, id contract.TheRepair) {
	var in contract.WithReason
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	if err == nil {
		r, err = s.c.Store.RepairDrainNow(ctx, r.ID, in.Reason, me(c).Name)
	}
	s.done(c, http.StatusAccepted, r, err)
}

// GetRepairEvidence is the bundle that goes with a part to its maker: what was told, seen, tried and tested.
func (s *Server) GetRepairEvidence(c *gin.Context, id contract.TheRepair) {
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	var e store.RepairEvidence
	if err == nil {
		e, err = s.c.Store.RepairEvidence(ctx, r.ID)
	}
	s.done(c, http.StatusOK, contract.RepairEvidence{Repair: e.Repair, Faults: some(e.Faults), Devices: some(e.Devices), BurnIns: each(e.BurnIns, schema.Task.Record), Readings: some(e.Readings), Events: some(e.Events)}, err)
}

// ListRMAs lists parts that go back to their makers.
func (s *Server) ListRMAs(c *gin.Context, p contract.ListRMAsParams) {
	list, err := s.c.Store.RMAs(c.Request.Context(), val(p.Open))
	s.done(c, http.StatusOK, contract.RMAList{Items: some(list)}, err)
}

// OpenRMA begins the return of a part that no repair took out.
func (s *Server) OpenRMA(c *gin.Context) {
	var in contract.NewRMA
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	m, err := s.c.Store.OpenRMA(c.Request.Context(), in.SerialOut, in.Note, me(c).Name)
	s.done(c, http.StatusCreated, m, err)
}

// ChangeRMA keeps what became of it.
func (s *Server) ChangeRMA(c *gin.Context, rma string) {
	var in contract.RMAChange
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	m, err := s.c.Store.RMA(ctx, rma)
	if err == nil {
		m, err = s.c.Store.ChangeRMA(ctx, m.ID, store.RMAChange{State: in.State, VendorCase: in.VendorCase, SerialIn: in.SerialIn, Note: in.Note}, me(c).Name)
	}
	s.done(c, http.StatusOK, m, err)
}
