package bmc

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

const (
	propEnabled = "BootSourceOverrideEnabled"
	propTarget  = "BootSourceOverrideTarget"
	propMode    = "BootSourceOverrideMode"
	propURI     = "HttpBootUri"
	allowable   = "@Redfish.AllowableValues"
)

// BootOverride returns what the next power-on would boot.
func (s *Server) BootOverride() Boot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bootChoice()
}

// bootChoice reads the override in force. The settings resource, where there is one, holds what applies at the next reset.
func (s *Server) bootChoice() Boot {
	boot, _ := dig(s.doc(s.bootPath()), "Boot").(map[string]any)
	b := Boot{Target: "None", Mode: digString(boot, propMode)}
	enabled := digString(boot, propEnabled)
	if enabled == "" || enabled == "Disabled" {
		return b
	}
	b.Target, b.Once, b.HTTPURI = digString(boot, propTarget), enabled == "Once", digString(boot, propURI)
	if b.Target == "UefiBootNext" && s.quirks.PxeIsBootNext {
		b.Target = "Pxe"
	}
	return b
}

// bootPath is the resource whose Boot the firmware obeys.
func (s *Server) bootPath() string {
	if s.setPath != "" {
		return s.setPath
	}
	return s.sysPath
}

// consumeBoot returns the boot choice of a power-on and clears a one-time override. The caller holds mu.
func (s *Server) consumeBoot() Boot {
	b := s.bootChoice()
	for _, path := range []string{s.sysPath, s.setPath} {
		boot, ok := dig(s.own(path), "Boot").(map[string]any)
		if !ok {
			continue
		}
		if path == s.sysPath && s.setPath != "" { // what was pending becomes current
			pending, _ := dig(s.doc(s.setPath), "Boot").(map[string]any)
			for _, k := range []string{propEnabled, propTarget, propMode, propURI} {
				if v, ok := pending[k]; ok {
					boot[k] = v
				}
			}
		}
		if boot[propEnabled] == "Once" {
			boot[propEnabled] = "Disabled"
			if _, ok := boot[propTarget]; ok {
				boot[propTarget] = "None"
			}
		}
		s.etags[path]++
	}
	return b
}

// allowedBoot lists the values that the firmware takes for a boot property, nil when it doesn't say.
func (s *Server) allowedBoot(prop string) []string {
	for _, path := range []string{s.setPath, s.sysPath} {
		if list := strs(dig(s.doc(path), "Boot", prop+allowable)); len(list) > 0 {
			return list
		}
	}
	return nil
}

// patchBoot applies a PATCH of the Boot object to the system or its settings. The caller holds mu and has checked the
// entity tag. A nil reply means applied.
func (s *Server) patchBoot(path string, change Doc) *reply {
	q := s.quirks
	if path == s.sysPath && s.setPath != "" && q.BootOnSettingsOnly {
		return refuse(http.StatusBadRequest, "PropertyNotWritable",
			"The property Boot is a read only property and cannot be assigned a value; use the settings resource.")
	}
	if q.POSTWindow > 0 && s.power.on && time.Since(s.power.onAt) < q.POSTWindow {
		return refuse(http.StatusBadRequest, "UnableToModifyDuringSystemPOST", "Unable to modify while the system is in POST.")
	}
	for prop, v := range change {
		str, isString := v.(string)
		if list := s.allowedBoot(prop); len(list) > 0 && isString && !slices.Contains(list, str) && !(q.UndeclaredHTTP && str == "UefiHttp") {
			return refuse(http.StatusBadRequest, "PropertyValueNotInList",
				fmt.Sprintf("The value '%s' for the property %s is not in the list of acceptable values.", str, prop))
		}
	}
	boot, ok := dig(s.own(path), "Boot").(map[string]any)
	if !ok {
		return refuse(http.StatusBadRequest, "PropertyUnknown", "The property Boot is not in the list of valid properties for the resource.")
	}
	_, current := boot[propURI]
	if _, sent := change[propURI]; sent && !current {
		return refuse(http.StatusBadRequest, "PropertyUnknown", "The property HttpBootUri is not in the list of valid properties for the resource.")
	}
	if q.RefuseEqual {
		same := true
		for k, v := range change {
			same = same && fmt.Sprint(boot[k]) == fmt.Sprint(v)
		}
		if same {
			return refuse(http.StatusBadRequest, "NoOperation", "The request body submitted contain no data to act upon and no changes to the resource took place.")
		}
	}
	if q.IgnoreOverride {
		return nil
	}
	merge(boot, clone(change).(Doc))
	_, withMode := change[propMode]
	_, override := change[propTarget]
	if _, hasMode := boot[propMode]; hasMode && (q.ModeAlwaysReverts || q.BootNeedsMode && override && !withMode) {
		boot[propMode] = "Legacy"
	}
	if q.PxeIsBootNext && boot[propTarget] == "Pxe" && boot[propEnabled] != "Disabled" {
		boot[propTarget] = "UefiBootNext"
	}
	return nil
}
