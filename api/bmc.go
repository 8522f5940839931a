package api

import (
	"context"
	"encoding/base64"
	"net/http"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// bmcOf is a server's BMC as the record has it.
func (s *Server) bmcOf(ctx context.Context, id string) (contract.BMC, error) {
	v, err := s.c.Store.Server(ctx, id)
	if err != nil {
		return contract.BMC{}, err
	}
	login, err := s.c.Store.BMCLogin(ctx, v.ID)
	if err != nil {
		return contract.BMC{}, err
	}
	state, err := s.c.Store.BMCState(ctx, v.BMCAddress)
	if err != nil {
		return contract.BMC{}, err
	}
	out := contract.BMC{Server: v.ID, Address: v.BMCAddress, Protocol: v.BMCProtocol, Username: login.Username, PasswordChangedAt: login.RotatedAt, RotationPending: login.Pending != "",
		TlsKey: state.TLSKey, OfferedKey: state.OfferedKey, Sighting: schema.BMCSighting{Server: v.ID, Power: "unknown"}}
	seen, err := s.c.Store.BMCSightings(ctx, v.ID)
	if len(seen) > 0 {
		out.Sighting = seen[0]
	}
	return out, err
}

// GetBMC reads what is known; it asks nothing of the BMC.
func (s *Server) GetBMC(c *gin.Context, id contract.TheServer) {
	out, err := s.bmcOf(c.Request.Context(), id)
	s.done(c, http.StatusOK, out, err)
}

// ListBMCActs lists the newest first.
func (s *Server) ListBMCActs(c *gin.Context, id contract.TheServer) {
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.BMCActs(ctx, v.ID, 100)
	s.done(c, http.StatusOK, contract.BMCActList{Items: some(list)}, err)
}

// AskBMC keeps what is asked; a worker of the server's site does it.
func (s *Server) AskBMC(c *gin.Context, id contract.TheServer) {
	var in contract.NewBMCAct
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	a, err := s.c.Store.AskBMC(c.Request.Context(), id, in.Verb, schema.BMCArgs{Want: in.Want, Hard: in.Hard, From: in.From, Lit: in.Lit, Most: in.Most, Seconds: in.Seconds,
		First: in.First, Attributes: in.Attributes, Image: in.Image, Eject: in.Eject}, in.Reason, me(c).Name)
	s.done(c, http.StatusAccepted, a, err)
}

// GetBMCAct reads one, or waits for it to change.
func (s *Server) GetBMCAct(c *gin.Context, id contract.TheBMCAct, p contract.GetBMCActParams) {
	ctx := c.Request.Context()
	a, err := s.c.Store.BMCAct(ctx, id)
	if err == nil && p.Wait != nil {
		err = s.changed(ctx, store.TopicServer(a.Server), p.Wait, p.Since, func() (int64, bool, error) {
			a, err = s.c.Store.BMCAct(ctx, id)
			return a.Version, a.EndedAt != 0, err
		})
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.tagged(c, a.Version, a)
}

// GetBMCFile gives the file that an act made.
func (s *Server) GetBMCFile(c *gin.Context, id contract.TheBMCAct) {
	f, err := s.c.Store.BMCFile(c.Request.Context(), id)
	if err != nil {
		s.fail(c, err)
		return
	}
	content, err := base64.StdEncoding.DecodeString(f.Content)
	s.done(c, http.StatusOK, contract.BMCFile{Name: f.Name, Content: content}, err)
}

// SetBMCCredential keeps the password that the BMC has now.
func (s *Server) SetBMCCredential(c *gin.Context, id contract.TheServer) {
	var in contract.BMCCredential
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	if err := s.c.Store.SetBMCLogin(ctx, id, in.Username, in.Password, s.c.Ring, me(c).Name); err != nil {
		s.fail(c, err)
		return
	}
	out, err := s.bmcOf(ctx, id)
	s.done(c, http.StatusOK, out, err)
}

// TrustBMCKey acknowledges that the BMC has another TLS key.
func (s *Server) TrustBMCKey(c *gin.Context, id contract.TheServer) {
	var in contract.BMCKey
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	if err := s.c.Store.TrustBMCKey(ctx, id, in.Key, me(c).Name); err != nil {
		s.fail(c, err)
		return
	}
	out, err := s.bmcOf(ctx, id)
	s.done(c, http.StatusOK, out, err)
}

// heardBMC takes an event that a BMC pushes. What it says is a hint to look, and not read: evidence is what the look shows.
func (s *Server) heardBMC(c *gin.Context) {
	err := s.c.Store.HeardBMC(c.Request.Context(), c.Param("server"), c.Param("secret"))
	switch {
	case schema.Is(err, schema.CodeNotFound):
		s.fail(c, s.auth.Failed("bmc "+c.ClientIP(), "no BMC pushes events to this address"))
	case err != nil:
		s.fail(c, err)
	default:
		c.Status(http.StatusNoContent)
	}
}

// ListFoundBMCs lists those that no server is enrolled with.
func (s *Server) ListFoundBMCs(c *gin.Context, p contract.ListFoundBMCsParams) {
	site := ""
	if p.Site != nil {
		site = *p.Site
	}
	list, err := s.c.Store.BMCsFound(c.Request.Context(), site)
	s.done(c, http.StatusOK, contract.FoundBMCList{Items: some(list)}, err)
}

// ProbeBMCs keeps what is asked; a worker of the site does it.
func (s *Server) ProbeBMCs(c *gin.Context) {
	var in contract.NewBMCProbe
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	p, err := s.c.Store.AskBMCProbe(c.Request.Context(), store.NewBMCProbe{Site: in.Site, Range: in.Range, Port: in.Port, PlainHTTP: in.PlainHttp, Username: in.Username, Password: in.Password}, s.c.Ring, me(c).Name)
	s.done(c, http.StatusAccepted, p, err)
}

// ListAllowedSerials reads a site's allow-list.
func (s *Server) ListAllowedSerials(c *gin.Context, p contract.ListAllowedSerialsParams) {
	list, err := s.c.Store.AllowedSerials(c.Request.Context(), p.Site)
	s.done(c, http.StatusOK, contract.AllowedSerials{Site: p.Site, Serials: list}, err)
}

// SetAllowedSerials puts one in the place of that before.
func (s *Server) SetAllowedSerials(c *gin.Context) {
	var in contract.AllowedSerials
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	err := s.c.Store.AllowSerials(ctx, in.Site, in.Serials, me(c).Name)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.AllowedSerials(ctx, in.Site)
	s.done(c, http.StatusOK, contract.AllowedSerials{Site: in.Site, Serials: list}, err)
}

// GetBMCProbe reads one, or waits for it to change.
func (s *Server) GetBMCProbe(c *gin.Context, id contract.TheBMCProbe, q contract.GetBMCProbeParams) {
	ctx := c.Request.Context()
	p, err := s.c.Store.BMCProbe(ctx, id)
	if err == nil && q.Wait != nil {
		err = s.changed(ctx, store.TopicAll, q.Wait, q.Since, func() (int64, bool, error) {
			p, err = s.c.Store.BMCProbe(ctx, id)
			return p.Version, p.EndedAt != 0, err
		})
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.tagged(c, p.Version, p)
}

// KeepFoundBMCs keeps what a probe found.
func (s *Server) KeepFoundBMCs(c *gin.Context) {
	var in contract.NewFoundBMCs
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	found := make([]schema.BMCFound, len(in.Items))
	for i, f := range in.Items {
		found[i] = schema.BMCFound{Address: f.Address, Site: in.Site, Protocol: "redfish", Vendor: f.Vendor, Product: f.Product, UUID: f.Uuid, Serial: f.Serial, TLSKey: f.TlsKey, Via: "probe"}
	}
	ctx := c.Request.Context()
	if err := s.c.Store.FoundBMCs(ctx, found); err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.BMCsFound(ctx, in.Site)
	s.done(c, http.StatusOK, contract.FoundBMCList{Items: some(list)}, err)
}
