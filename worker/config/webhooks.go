package config

import (
	"net/netip"
	"time"
)

// Webhooks is how people's own systems are told of events.
type Webhooks struct {
	AllowNetworks []string      `yaml:"allow_networks" help:"Networks that webhooks may reach although they are not public. Whoever may make a webhook can then have POST requests sent to every address there: name no more than receivers are in." zero:"none: public addresses only" example:"[10.40.0.0/16]"`
	AllowHTTP     bool          `yaml:"allow_http" help:"Take webhooks without TLS: what they are told can be read on its way." zero:"false" example:"true"`
	GiveUp        time.Duration `yaml:"give_up" help:"A message that was not taken for so long is given up; a webhook that takes none for so long is disabled, with what waits for it. 1m to 720h." zero:"24h" example:"72h"`
}

func (w *Webhooks) fill() {
	if w.GiveUp == 0 {
		w.GiveUp = 24 * time.Hour
	}
}

func (w Webhooks) validate(v *checks) {
	for _, n := range w.AllowNetworks {
		_, err := netip.ParsePrefix(n)
		v.that(err == nil, "webhooks.allow_networks", n, "a network such as 10.40.0.0/16 or 2001:db8::/48")
	}
	v.that(w.GiveUp >= time.Minute && w.GiveUp <= 720*time.Hour, "webhooks.give_up", w.GiveUp, "1m to 720h")
}
