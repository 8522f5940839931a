package store

import (
	"context"
	"encoding/json"
	"strings"

	"gpupool/schema"
)

// SetInstallChoice says which install profile a server, a rack's servers or a model's get; one that was there is replaced.
// Whether there is such a profile, and whether it has these values, is the caller's to check.
func (s *Store) SetInstallChoice(ctx context.Context, by string, c schema.InstallChoice, values map[string]string) (schema.InstallChoice, error) {
	if !NamePattern.MatchString(c.Profile) {
		return c, schema.Invalid("profile", c.Profile, "an install profile's name")
	}
	if len(values) > 0 {
		b, err := json.Marshal(values)
		if err != nil {
			return c, err
		}
		c.Vals = string(b)
	}
	err := s.Write(ctx, func(tx *Tx) error {
		if err := tx.installScope(&c); err != nil {
			return err
		}
		c.By, c.At = by, tx.now
		if c.Scope == schema.InstallServer {
			if err := tx.setProfile(c.Name, c.Profile); err != nil {
				return err
			}
		}
		if _, err := tx.exec(`INSERT INTO install_choices (scope, name, profile, vals, "by", at) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (scope, name) DO UPDATE SET profile = excluded.profile, vals = excluded.vals, "by" = excluded."by", at = excluded.at`, c.Scope, c.Name, c.Profile, c.Vals, c.By, c.At); err != nil {
			return err
		}
		tx.policyChanged(string(c.Scope)+"/"+c.Name, "", by, "install profile chosen", c)
		return nil
	})
	return c, err
}

// RemoveInstallChoice takes one back: the next wider one holds.
func (s *Store) RemoveInstallChoice(ctx context.Context, by string, scope schema.InstallScope, name string) error {
	c := schema.InstallChoice{Scope: scope, Name: name}
	return s.Write(ctx, func(tx *Tx) error {
		if err := tx.installScope(&c); err != nil {
			return err
		}
		n, err := tx.exec("DELETE FROM install_choices WHERE scope = ? AND name = ?", c.Scope, c.Name)
		if err != nil {
			return err
		}
		if n == 0 {
			return schema.NotFound("install choice of "+string(scope), name)
		}
		if c.Scope == schema.InstallServer {
			if err := tx.setProfile(c.Name, ""); err != nil {
				return err
			}
		}
		tx.policyChanged(string(c.Scope)+"/"+c.Name, "", by, "install choice removed", c)
		return nil
	})
}

// installScope checks what a choice is for, and turns a server's name into its id.
func (tx *Tx) installScope(c *schema.InstallChoice) error {
	switch c.Scope {
	case schema.InstallServer:
		v, err := tx.server(c.Name)
		c.Name = v.ID
		return err
	case schema.InstallRack:
		site, rack, ok := strings.Cut(c.Name, "/")
		if !ok || !NamePattern.MatchString(site) || !NamePattern.MatchString(rack) {
			return schema.Invalid("name", c.Name, "a rack as SITE/RACK")
		}
	case schema.InstallModel:
		if !NamePattern.MatchString(c.Name) {
			return schema.Invalid("name", c.Name, "an accelerator model, such as nvidia-h100-80gb")
		}
	default:
		return schema.Invalid("scope", string(c.Scope), "server, rack or model")
	}
	return nil
}

func (tx *Tx) setProfile(server, profile string) error {
	v, err := tx.server(server)
	if err != nil || v.Profile == profile {
		return err
	}
	v.Profile = profile
	return tx.saveServer(&v)
}

// InstallChoices are all, by scope and name.
func (s *Store) InstallChoices(ctx context.Context) ([]schema.InstallChoice, error) {
	var out []schema.InstallChoice
	return out, s.read(ctx).Order("scope, name").Find(&out).Error
}

// InstallChoiceOf is what a server is installed with: its own choice, else the profile that it was enrolled or is
// onboarded with, else its rack's choice, else its model's. An empty Profile is the default profile.
func (s *Store) InstallChoiceOf(ctx context.Context, v schema.Server) (schema.InstallChoice, error) {
	var all []schema.InstallChoice
	if err := s.read(ctx).Where(choicesOf, v.ID, v.Site+"/"+v.Rack, v.Model).Find(&all).Error; err != nil {
		return schema.InstallChoice{}, err
	}
	return nearest(v, all), nil
}

const choicesOf = "scope = 'server' AND name = ? OR scope = 'rack' AND name = ? OR scope = 'model' AND name = ?"

func (tx *Tx) installChoice(v schema.Server) (schema.InstallChoice, error) {
	var all []schema.InstallChoice
	err := tx.db.Where(choicesOf, v.ID, v.Site+"/"+v.Rack, v.Model).Find(&all).Error
	return nearest(v, all), err
}

func nearest(v schema.Server, all []schema.InstallChoice) schema.InstallChoice {
	of := func(scope schema.InstallScope) (schema.InstallChoice, bool) {
		for _, c := range all {
			if c.Scope == scope {
				return c, true
			}
		}
		return schema.InstallChoice{}, false
	}
	own, ok := of(schema.InstallServer)
	switch {
	case ok && own.Profile == v.Profile:
		return own
	case v.Profile != "": // an onboarding asked for another one than was chosen: the chosen one's values are not its
		return schema.InstallChoice{Scope: schema.InstallServer, Name: v.ID, Profile: v.Profile}
	}
	for _, scope := range []schema.InstallScope{schema.InstallRack, schema.InstallModel} {
		if c, ok := of(scope); ok {
			return c
		}
	}
	return schema.InstallChoice{}
}
