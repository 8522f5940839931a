package worker

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpupool/activities/health"
	"gpupool/activities/install"
	"gpupool/worker/config"
	"gpupool/workflows"
)

func TestTheSettingsDefaultsAreTheProcessesOwn(t *testing.T) {
	t.Parallel()
	onboard, repair, jobs := waits(config.DefaultTiming)
	if diff := cmp.Diff(install.DefaultTiming, onboard); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(health.DefaultTiming, repair); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(workflows.RunJobInput{LaunchTimeout: 5 * time.Minute, ReleaseMargin: 30 * time.Second}, jobs); diff != "" {
		t.Error(diff)
	}
}

// Each wait that can be set is one that a process goes by: none is forgotten on the way.
func TestEverySettingOfTimeReachesAProcess(t *testing.T) {
	t.Parallel()
	var c config.Timing
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		v.Field(i).SetInt(int64(time.Duration(i+1) * time.Minute))
	}
	taken := map[time.Duration]bool{c.Heartbeat: true} // by the API, which tells the agents
	onboard, repair, jobs := waits(c)
	for _, s := range []any{onboard, repair, jobs} {
		s := reflect.ValueOf(s)
		for i := range s.NumField() {
			if d, ok := s.Field(i).Interface().(time.Duration); ok {
				taken[d] = true
			}
		}
	}
	for i := range v.NumField() {
		if !taken[time.Duration(v.Field(i).Int())] {
			t.Errorf("timing.%s is set and nothing goes by it", v.Type().Field(i).Tag.Get("yaml"))
		}
	}
}

func TestTheBootServiceGoesByItsSettings(t *testing.T) {
	t.Parallel()
	c, err := config.Load(config.Source{Environ: []string{"HOME=" + t.TempDir()}, Set: []string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.no_probe=true", "pxe.tls_cert=c", "pxe.tls_key=k", "pxe.stages={x64: own.efi}",
		"pxe.subnets=[{cidr: 10.0.0.0/24, relays: [10.9.0.1], ntp: [10.0.0.3], domain: a.example, mtu: 9000, interface: eth1}]", "pxe.boot_lease_time=5m", "pxe.quarantine=2h", "pxe.offer_hold=10s", "pxe.user_class=own", "pxe.tftp_per_client=3"}})
	if err != nil {
		t.Fatal(err)
	}
	got := BootConfig(c.PXE, "https://api.example")
	n := got.Subnets[0]
	if !got.NoProbe || got.TLSCert != "c" || got.TLSKey != "k" || got.Stages["x64"] != "own.efi" || got.Quarantine != 2*time.Hour || got.OfferHold != 10*time.Second || got.UserClass != "own" || got.TFTPPerClient != 3 || got.PXE != ":4011" || got.APIURL != "https://api.example" ||
		n.Relays[0] != "10.9.0.1" || n.NTP[0] != "10.0.0.3" || n.Domain != "a.example" || n.MTU != 9000 || n.Interface != "eth1" || n.BootLease != 5*time.Minute || n.Lease != time.Hour {
		t.Fatalf("the boot service is given %+v", got)
	}
}
