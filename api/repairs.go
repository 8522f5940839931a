package api

import (
	"context"
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

// repair finds one by its id, or by its server's name or id: that is the server's last one. A server that never had one is
// not in repair, and that is said.
func (s *Server) repair(ctx context.Context, repairOrServer string) (schema.Repair, error) {
	r, err := s.c.Store.Repair(ctx, repairOrServer)
	if !schema.Is(err, schema.CodeNotFound) {
		return r, err
	}
	v, e := s.c.Store.Server(ctx, repairOrServer)
	if schema.Is(e, schema.CodeNotFound) {
		return r, err
	}
	if e != nil {
		return r, e
	}
	list, err := s.c.Store.Repairs(ctx, store.RepairFilter{Server: v.ID})
	if err == nil && len(list) == 0 {
		err = schema.Conflict("server "+v.Name+" is not in repair: it is "+string(v.Phase), "a repair opens with the fault that takes a server out; see GET /v1/faults?server="+v.Name)
	}
	if err != nil {
		return r, err
	}
	return list[0], nil // the newest first; the open one, if there is one
}

// GetRepair reads one, or waits for it to change.
func (s *Server) GetRepair(c *gin.Context, id contract.TheRepair, p contract.GetRepairParams) {
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	if err == nil && p.Wait != nil {
		err = s.changed(ctx, store.TopicServer(r.Server), p.Wait, p.Since, func() (int64, bool, error) {
			r, err = s.c.Store.Repair(ctx, r.ID)
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
	r, err := s.repair(ctx, id)
	if err == nil && r.State != schema.RepairWaiting {
		err = schema.Conflict("repair "+r.ID+" is "+string(r.State), "done is taken while it waits for the technician")
	}
	if err == nil {
		err = s.c.Processes.RepairDone(ctx, r, RepairDone{OldSerial: in.OldSerial, NewSerial: in.NewSerial, Did: in.Did, Note: in.Note, By: me(c).Name})
	}
	if err == nil {
		r, err = s.c.Store.Repair(ctx, r.ID)
	}
	s.done(c, http.StatusAccepted, r, err)
}
