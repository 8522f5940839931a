package schema

import (
	"encoding/json"
	"fmt"
	"slices"
)

// ProfileValues reads Vals.
func (a Armed) ProfileValues() (map[string]string, error) { return readValues(a.Vals) }

func readValues(vals string) (map[string]string, error) {
	if vals == "" {
		return nil, nil
	}
	var v map[string]string
	if err := json.Unmarshal([]byte(vals), &v); err != nil {
		return nil, fmt.Errorf("the install profile's values can't be read: %w", err)
	}
	return v, nil
}

// InstallScope is what an install choice is for.
type InstallScope string

const (
	InstallServer InstallScope = "server" // one server, by its id
	InstallRack   InstallScope = "rack"   // site/rack
	InstallModel  InstallScope = "model"  // every server ordered with that accelerator model
)

// InstallScopes are all scopes, the nearest first: that is the order in which a choice is looked for.
var InstallScopes = []InstallScope{InstallServer, InstallRack, InstallModel}

// Valid reports whether s is one of them.
func (s InstallScope) Valid() bool { return slices.Contains(InstallScopes, s) }

// InstallChoice says which install profile servers get, with which of its values set.
type InstallChoice struct {
	Scope   InstallScope `gorm:"primaryKey" json:"scope"`
	Name    string       `gorm:"primaryKey" json:"name"` // see InstallScope
	Profile string       `json:"profile"`
	Vals    string       `json:"-"` // a JSON object; empty = none
	By      string       `json:"by"`
	At      Instant      `json:"at"`
}

// ProfileValues reads Vals.
func (c InstallChoice) ProfileValues() (map[string]string, error) { return readValues(c.Vals) }

// ProfileValues reads Vals.
func (r Running) ProfileValues() (map[string]string, error) { return readValues(r.Vals) }
