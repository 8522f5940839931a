package config

import (
	"time"
)

// BMC is how the servers' BMCs are spoken to.
type BMC struct {
	CA            string        `yaml:"ca" help:"File with the certificate authorities that sign your BMCs' certificates, PEM. With it nothing is trusted on first use." zero:"none: the first key that a BMC shows is trusted, another needs an operator's word" example:"/etc/gpupool/bmc-ca.pem"`
	WatchInterval time.Duration `yaml:"watch_interval" help:"Between two looks at a server through its BMC, 1s to 1h. Every fifth look is a long one: accelerators, counters, leaks, logs." zero:"1m" example:"2m"`
	PollOnly      bool          `yaml:"poll_only" help:"Don't listen to events of BMCs that send them: one connection less to each, and what happens is seen at the next look." zero:"false" example:"true"`
	EventURL      string        `yaml:"event_url" help:"Base address at which your BMCs reach the API, for those that push events. Each is given an address of its own below it, with a secret. BMCs rarely check certificates." zero:"none: BMCs that offer no event stream are polled" example:"https://10.20.0.5:8443"`
	ResetsPerDay  int           `yaml:"resets_per_day" help:"How often onboardings and repairs may take one server's power away within 24 hours, 1 to 1000. Over it they stop and ask for hands; what a person asks for is not held back. -1 = as often as they like." zero:"24" example:"12"`
	RotateAfter   time.Duration `yaml:"rotate_after" help:"Give a BMC account a new password when it has had one for so long, at least 1h." zero:"never: only a factory password, and when an operator says so" example:"2160h"`
}

func (b *BMC) fill() {
	if b.WatchInterval == 0 {
		b.WatchInterval = time.Minute
	}
	if b.ResetsPerDay == 0 {
		b.ResetsPerDay = 24
	}
}

func (b BMC) validate(v *checks) {
	v.that(b.WatchInterval >= time.Second && b.WatchInterval <= time.Hour, "bmc.watch_interval", b.WatchInterval, "1s to 1h")
	v.that(b.ResetsPerDay >= -1 && b.ResetsPerDay <= 1000, "bmc.resets_per_day", b.ResetsPerDay, "1 to 1000, or -1 for no limit")
	v.url("bmc.event_url", b.EventURL)
	v.that(b.RotateAfter == 0 || b.RotateAfter >= time.Hour, "bmc.rotate_after", b.RotateAfter, "at least 1h, or 0 for never")
}
