package api

import (
	"cmp"
	"net/http"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
)

// Installs is the catalogue of install profiles. Errors are *schema.Error and name the field.
type Installs interface {
	// Profiles lists them by name.
	Profiles() []contract.InstallProfile
	// Check refuses a profile that there is not, and values that it does not have or that have another form.
	Check(profile string, values map[string]string) error
	// Preview renders what a server would be given. It makes no token.
	Preview(v schema.Server, profile string, values map[string]string) (contract.InstallPreview, error)
}

var errNoInstalls = &schema.Error{Code: schema.CodeUnavailable, Message: "this API has no install profiles", Hint: "ask an operator to look at the API's configuration"}

// ListInstallProfiles lists by name.
func (s *Server) ListInstallProfiles(c *gin.Context) {
	if s.c.Installs == nil {
		s.fail(c, errNoInstalls)
		return
	}
	s.reply(c, http.StatusOK, contract.InstallProfileList{Items: some(s.c.Installs.Profiles())})
}

// ListInstallChoices lists by scope and name.
func (s *Server) ListInstallChoices(c *gin.Context) {
	ctx := c.Request.Context()
	list, err := s.c.Store.InstallChoices(ctx)
	items := make([]contract.InstallChoice, 0, len(list))
	for _, x := range list {
		if err != nil {
			break
		}
		var out contract.InstallChoice
		out, err = toInstallChoice(x)
		if x.Scope == schema.InstallServer && err == nil {
			var v schema.Server
			v, err = s.c.Store.Server(ctx, x.Name)
			out.Server = v.Name
		}
		items = append(items, out)
	}
	s.done(c, http.StatusOK, contract.InstallChoiceList{Items: items}, err)
}

func toInstallChoice(x schema.InstallChoice) (contract.InstallChoice, error) {
	values, err := x.ProfileValues()
	if values == nil {
		values = map[string]string{}
	}
	return contract.InstallChoice{Scope: x.Scope, Name: x.Name, Profile: x.Profile, Values: values, By: x.By, At: x.At}, err
}

// SetInstallChoice chooses a profile for a server, a rack or a model.
func (s *Server) SetInstallChoice(c *gin.Context) {
	var in contract.NewInstallChoice
	err := decode(c, &in, false)
	if err == nil && s.c.Installs == nil {
		err = errNoInstalls
	}
	if err == nil {
		err = s.c.Installs.Check(in.Profile, in.Values)
	}
	if err == nil && in.Scope == schema.InstallModel {
		err = s.knownModel(c, "name", in.Name, false)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	x, err := s.c.Store.SetInstallChoice(c.Request.Context(), me(c).Name, schema.InstallChoice{Scope: in.Scope, Name: in.Name, Profile: in.Profile}, in.Values)
	if err != nil {
		s.fail(c, err)
		return
	}
	out, err := toInstallChoice(x)
	s.done(c, http.StatusOK, out, err)
}

// RemoveInstallChoice takes one back.
func (s *Server) RemoveInstallChoice(c *gin.Context, p contract.RemoveInstallChoiceParams) {
	if err := s.c.Store.RemoveInstallChoice(c.Request.Context(), me(c).Name, p.Scope, p.Name); err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

// PreviewInstall renders what a server would be given.
func (s *Server) PreviewInstall(c *gin.Context, id contract.TheServer) {
	var in contract.PreviewOptions
	ctx := c.Request.Context()
	err := decode(c, &in, true)
	if err == nil && s.c.Installs == nil {
		err = errNoInstalls
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	v, err := s.c.Store.Server(ctx, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	chosen, err := s.c.Store.InstallChoiceOf(ctx, v)
	values := in.Values
	if err == nil && in.Profile == "" && values == nil {
		values, err = chosen.ProfileValues()
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	out, err := s.c.Installs.Preview(v, cmp.Or(in.Profile, chosen.Profile), values)
	out.ChosenFor = cmp.Or(string(chosen.Scope), "default")
	if in.Profile != "" || in.Values != nil {
		out.ChosenFor = "preview"
	}
	s.done(c, http.StatusOK, out, err)
}
