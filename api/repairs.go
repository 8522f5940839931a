package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// ListFaults lists the newest first.
func (s *Server) ListFaults(c *gin.Context, p contract.ListFaultsParams) {
	ctx := c.Request.Context()
	id, err := s.serverID(ctx, p.Server)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.Faults(ctx, id)
	s.done(c, http.StatusOK, contract.FaultList{Items: some(list)}, err)
}

// ListRepairs lists the newest first.
func (s *Server) ListRepairs(c *gin.Context, p contract.ListRepairsParams) {
	ctx := c.Request.Context()
	id, err := s.serverID(ctx, p.Server)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.Repairs(ctx, store.RepairFilter{Server: id, Open: val(p.Open)})
	s.done(c, http.StatusOK, contract.RepairList{Items: some(list)}, err)
}

// GetRepair reads one, or waits for it to change.
func (s *Server) GetRepair(c *gin.Context, id contract.TheRepair, p contract.GetRepairParams) {
	ctx := c.Request.Context()
	r, err := s.c.Store.Repair(ctx, id)
	if err == nil && p.Wait != nil {
		err = s.changed(ctx, store.TopicServer(r.Server), p.Wait, p.Since, func() (int64, bool, error) {
			r, err = s.c.Store.Repair(ctx, id)
			return r.Version, r.ClosedAt != 0, err
		})
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.tagged(c, r.Version, r)
}

// FinishRepair takes the technician's word; the hardware is then proven before it returns.
func (s *Server) FinishRepair(c *gin.Context, id contract.TheRepair) {
	var in contract.RepairDone
	if err := decode(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	for _, f := range []struct {
		field, value string
		most         int
	}{{"old_serial", in.OldSerial, 100}, {"new_serial", in.NewSerial, 100}, {"note", in.Note, 4000}} {
		if len(f.value) > f.most {
			s.fail(c, schema.Invalid(f.field, f.value, "less text"))
			return
		}
	}
	ctx := c.Request.Context()
	r, err := s.c.Store.Repair(ctx, id)
	if err == nil && r.State != schema.RepairWaiting {
		err = schema.Conflict("repair "+r.ID+" is "+string(r.State), "done is taken while it waits for the technician")
	}
	if err == nil {
		err = s.c.Processes.RepairDone(ctx, r, RepairDone{OldSerial: in.OldSerial, NewSerial: in.NewSerial, Note: in.Note, By: me(c).Name})
	}
	if err == nil {
		r, err = s.c.Store.Repair(ctx, id)
	}
	s.done(c, http.StatusAccepted, r, err)
}
