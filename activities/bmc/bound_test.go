package bmc_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// What a body of 16 MiB costs in memory is bounded, whatever it is made of: a small multiple of what was sent, also where each two
// bytes of it are a value of their own, and also where it is a refusal's.
func TestAHostileBodyCostsBoundedMemory(t *testing.T) { // not parallel: it measures this process
	const most = 16 << 20
	times := func(s string) string { return strings.Repeat(s, (most-100)/len(s)) }
	patient := quick
	patient.Call, patient.BulkCall = time.Minute, time.Minute
	for name, tc := range map[string]struct {
		status int
		body   string
	}{
		"empty objects":        {200, `{"Members": [` + times("{},") + `{}]}`},
		"empty arrays":         {200, `{"Members": [` + times("[],") + `[]]}`},
		"numbers":              {200, `{"Members": [` + times("1,") + `1]}`},
		"keys":                 {200, `{` + times(`"a":1,`) + `"b":1}`},
		"one string":           {200, `{"Name": "` + times("x") + `"}`},
		"escapes":              {200, `{"Name": "` + times(`\u00e4`) + `"}`},
		"a refusal of objects": {400, `{"error": {"@Message.ExtendedInfo": [` + times("{},") + `{}]}}`},
	} {
		c := hurried(t, hostile(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tc.status)
			_, _ = w.Write([]byte(tc.body)) // it hangs up when it has had enough
		}), patient)
		if err := c.Login(t.Context()); err != nil && !errors.Is(err, bmc.ErrRefused) && !errors.Is(err, bmc.ErrBody) && !errors.Is(err, bmc.ErrNoHost) {
			t.Fatalf("%s: %.300v", name, err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		_, err := c.Power(t.Context())
		runtime.ReadMemStats(&after)
		if err == nil || len(err.Error()) > 2000 {
			t.Errorf("%s: %.300v", name, err)
		}
		// To read 16 MiB into a buffer that grows takes about six times that.
		if took := after.TotalAlloc - before.TotalAlloc; took > 16*most {
			t.Errorf("%s: %d MiB were allocated for %d MiB", name, took>>20, most>>20)
		} else {
			t.Logf("%s: %d MiB were allocated for %d MiB", name, took>>20, most>>20)
		}
	}
}

// A BMC, or who stands before it, that speaks only an old TLS, or none where there was one, is told nothing.
func TestAnOldTLSIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	cert, err := lab.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	var heard atomic.Int32
	for name, versions := range map[string][2]uint16{"TLS 1.0": {tls.VersionTLS10, tls.VersionTLS10}, "TLS 1.1": {tls.VersionTLS10, tls.VersionTLS11}, "none": {}} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard.Add(1) }))
		s.Config.ErrorLog = nil
		old := cert.Clone()
		if old.MinVersion, old.MaxVersion = versions[0], versions[1]; versions[1] == 0 {
			s.Start()
		} else {
			s.TLS = old
			s.StartTLS()
		}
		address := "https://" + s.Listener.Addr().String()
		if err := hurried(t, address, quick).Login(t.Context()); !errors.Is(err, bmc.ErrUnreachable) || heard.Load() != 0 {
			t.Errorf("%s: %v, %d requests were read", name, err, heard.Load())
		} else {
			t.Log(err)
		}
		s.Close()
	}
	// The same with the least that is taken is heard.
	s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithTLS(func() *tls.Config {
		c := cert.Clone()
		c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		return c
	}()))
	if err := dial(t, s).Login(t.Context()); err != nil {
		t.Error(err)
	}
}
