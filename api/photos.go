package api

import (
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
)

const (
	// photoWithin is how long a photo may take to come: a phone's line between the racks is slow.
	photoWithin = 5 * time.Minute
	// photosAtOnce bounds the memory that photos on their way take.
	photosAtOnce = 8
)

// ListRepairPhotos lists the oldest first.
func (s *Server) ListRepairPhotos(c *gin.Context, id contract.TheRepair) {
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	var list []schema.RepairPhoto
	if err == nil {
		list, err = s.c.Store.RepairPhotos(ctx, r.ID)
	}
	s.done(c, http.StatusOK, contract.RepairPhotoList{Items: some(list)}, err)
}

// AddRepairPhoto keeps a picture. A page of another site can send no image/* without asking first, so it is asked for.
func (s *Server) AddRepairPhoto(c *gin.Context, id contract.TheRepair, p contract.AddRepairPhotoParams) {
	if m := mediaType(c); !strings.HasPrefix(m, "image/") {
		s.fail(c, &schema.Error{Code: schema.CodeInvalid, Field: "Content-Type", Message: `"` + printable(m) + `" is not taken here`, Hint: "image/jpeg or image/png"})
		return
	}
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	select {
	case s.photos <- struct{}{}:
		defer func() { <-s.photos }()
	case <-ctx.Done():
		s.fail(c, ctx.Err())
		return
	}
	bounded(c, photoWithin)
	content, err := readBytes(c, schema.MaxPhotoBytes)
	var photo schema.RepairPhoto
	if err == nil {
		photo, err = s.c.Store.AddRepairPhoto(ctx, r.ID, content, val(p.Note), me(c).Name)
	}
	s.done(c, http.StatusCreated, photo, err)
}

// GetRepairPhoto shows it. Its bytes are what somebody sent: a browser is told to take them for a picture and for nothing else.
func (s *Server) GetRepairPhoto(c *gin.Context, id contract.TheRepair, photo string) {
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	p, content, err := s.c.Store.RepairPhoto(ctx, r.ID, photo)
	if err != nil {
		s.fail(c, err)
		return
	}
	tag := `"` + p.ID + `"`
	c.Header("ETag", tag)
	c.Header("Cache-Control", "private, no-cache") // kept by the caller's browser alone, and asked for again each time
	c.Header("Content-Security-Policy", "default-src 'none'; sandbox")
	c.Header("Cross-Origin-Resource-Policy", "same-origin")
	c.Header("Content-Disposition", `inline; filename="`+p.ID[:12]+"."+strings.TrimPrefix(p.Type, "image/")+`"`)
	if c.GetHeader("If-None-Match") == tag {
		c.Status(http.StatusNotModified)
		c.Writer.WriteHeaderNow()
		return
	}
	c.Data(http.StatusOK, p.Type, content)
}

// DeleteRepairPhoto takes one away.
func (s *Server) DeleteRepairPhoto(c *gin.Context, id contract.TheRepair, photo string) {
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	if err == nil {
		err = s.c.Store.RemoveRepairPhoto(ctx, r.ID, photo, me(c).Name)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

// LightRepair asks for the locator light; a worker of the server's site does it.
func (s *Server) LightRepair(c *gin.Context, id contract.TheRepair) {
	var in contract.RepairLight
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	var a schema.BMCAct
	if err == nil {
		a, err = s.c.Store.RepairLight(ctx, r.ID, in.Lit, me(c).Name)
	}
	s.done(c, http.StatusAccepted, lightAct(a), err)
}

// GetRepairLight says what came of the last time.
func (s *Server) GetRepairLight(c *gin.Context, id contract.TheRepair) {
	ctx := c.Request.Context()
	r, err := s.repair(ctx, id)
	var a schema.BMCAct
	if err == nil {
		var asked bool
		if a, asked, err = s.c.Store.RepairLastLight(ctx, r); err == nil && !asked {
			err = schema.NotFound("switching of the light of repair", r.ID)
		}
	}
	s.done(c, http.StatusOK, lightAct(a), err)
}

func lightAct(a schema.BMCAct) contract.RepairLightAct {
	return contract.RepairLightAct{Lit: a.Args.Lit, By: a.By, AskedAt: a.AskedAt, EndedAt: a.EndedAt, Failure: a.Failure}
}
