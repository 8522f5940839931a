package api

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// webhookSecretBytes is the length of a webhook's key; Standard Webhooks asks for 24 to 64.
const webhookSecretBytes = 32

// ListWebhooks lists by tenant and name; a tenant's admin those of its tenant.
func (s *Server) ListWebhooks(c *gin.Context) {
	list, err := s.c.Store.Webhooks(c.Request.Context(), me(c).Tenant)
	s.done(c, http.StatusOK, contract.WebhookList{Items: some(list)}, err)
}

// CreateWebhook makes one; a tenant's admin of its own tenant.
func (s *Server) CreateWebhook(c *gin.Context) {
	var in contract.NewWebhook
	err := decode(c, &in, false)
	var tenant, project string
	if err == nil {
		tenant, project, err = scope(c, &in.Tenant, &in.Project)
	}
	if err == nil && s.c.CheckWebhook != nil {
		err = s.c.CheckWebhook(in.Url)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	var key [webhookSecretBytes]byte
	_, _ = rand.Read(key[:]) // never fails, see crypto/rand
	secret := "whsec_" + base64.StdEncoding.EncodeToString(key[:])
	w, err := s.c.Store.CreateWebhook(c.Request.Context(), me(c).Name, store.NewWebhook{Name: in.Name, URL: in.Url, Events: in.Events, Tenant: tenant, Project: project, Secret: secret}, s.c.Ring)
	if strings.HasPrefix(in.Url, "mailto:") {
		secret = "" // it signs nothing
	}
	s.done(c, http.StatusCreated, contract.WebhookSecret{Webhook: w, Secret: secret}, err)
}

// webhook finds one that the caller may see.
func (s *Server) webhook(c *gin.Context, idOrName string) (schema.Webhook, error) {
	return s.c.Store.Webhook(c.Request.Context(), idOrName, me(c).Tenant)
}

// GetWebhook reads one.
func (s *Server) GetWebhook(c *gin.Context, idOrName contract.TheWebhook) {
	w, err := s.webhook(c, idOrName)
	s.done(c, http.StatusOK, w, err)
}

// DeleteWebhook ends one.
func (s *Server) DeleteWebhook(c *gin.Context, idOrName contract.TheWebhook) {
	w, err := s.webhook(c, idOrName)
	if err == nil {
		err = s.c.Store.DeleteWebhook(c.Request.Context(), me(c).Name, w.ID)
	}
	s.gone(c, err)
}

// ListDeliveries lists the newest messages to one.
func (s *Server) ListDeliveries(c *gin.Context, idOrName contract.TheWebhook, p contract.ListDeliveriesParams) {
	w, err := s.webhook(c, idOrName)
	var limit int
	if err == nil {
		limit, err = limitOf(p.Limit)
	}
	var list []schema.WebhookDelivery
	if err == nil {
		list, err = s.c.Store.Deliveries(c.Request.Context(), w.ID, val(p.State), limit)
	}
	s.done(c, http.StatusOK, contract.DeliveryList{Items: some(list)}, err)
}

// GetDelivery reads one message.
func (s *Server) GetDelivery(c *gin.Context, idOrName contract.TheWebhook, delivery string) {
	w, err := s.webhook(c, idOrName)
	var d schema.WebhookDelivery
	if err == nil {
		d, err = s.c.Store.Delivery(c.Request.Context(), w.ID, delivery)
	}
	s.done(c, http.StatusOK, contract.DeliveryBody{Delivery: d, Body: d.Body}, err)
}

// TestWebhook has a message sent once.
func (s *Server) TestWebhook(c *gin.Context, idOrName contract.TheWebhook) {
	w, err := s.webhook(c, idOrName)
	var d schema.WebhookDelivery
	if err == nil {
		d, err = s.c.Store.TestWebhook(c.Request.Context(), me(c).Name, w.ID, func(message string, at schema.Instant) (string, error) {
			b, err := json.Marshal(schema.Message{Type: schema.WebhookTest, Timestamp: at, Data: map[string]string{"message": message, "webhook": w.ID, "by": me(c).Name}})
			return string(b), err
		})
	}
	s.done(c, http.StatusAccepted, d, err)
}

// EnableWebhook takes a disabled one up again.
func (s *Server) EnableWebhook(c *gin.Context, idOrName contract.TheWebhook) {
	var in contract.EnableWebhook
	err := decode(c, &in, true)
	var w schema.Webhook
	if err == nil {
		w, err = s.webhook(c, idOrName)
	}
	if err == nil {
		w, err = s.c.Store.EnableWebhook(c.Request.Context(), me(c).Name, w.ID, in.FromNow)
	}
	s.done(c, http.StatusOK, w, err)
}
