package install

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"gpupool/pxe/boot"
	"gpupool/schema"
)

func TestADiagnosisSaysWhatWasProvenWhatWasNotAndWhatToDo(t *testing.T) {
	t.Parallel()
	type ev = schema.BootEvidence
	on := DiagnoseInput{Power: "on", Waited: 30 * time.Minute}
	discover, ack := ev{Kind: boot.KindDiscover, MAC: "0c:42:a1:00:00:01", Result: "ok"}, ev{Kind: boot.KindAck, IP: "10.1.0.7"}
	tftp := ev{Kind: boot.KindTFTP, What: "ipxe.efi", Bytes: 1 << 20, Result: "ok"}
	script := ev{Kind: boot.KindScript, What: "script.ipxe: install", Result: "ok"}
	cases := map[string]struct {
		in    DiagnoseInput
		seen  []ev
		code  schema.FailureCode
		words []string
	}{
		"no sign of a boot, power on":    {on, nil, schema.FailNoBoot, []string{"no DHCP message", "MAC that was enrolled", "power on"}},
		"the override still stands":      {DiagnoseInput{Power: "on", Override: "Pxe Once", Progress: "MemoryInitializationStarted"}, nil, schema.FailNoBoot, []string{"POST", "MemoryInitializationStarted", "Pxe Once"}},
		"the console was kept":           {DiagnoseInput{Power: "on", Console: "Access Denied | Start PXE over IPv4"}, []ev{discover, ack, tftp}, schema.FailInstall, []string{"The console said last: Access Denied | Start PXE over IPv4."}},
		"the power went off":             {DiagnoseInput{Power: "off"}, nil, schema.FailPower, []string{"power is off"}},
		"the BMC does not answer":        {DiagnoseInput{Power: "unknown", BMCError: "no route"}, nil, schema.FailBMC, []string{"no route"}},
		"asked for an address":           {on, []ev{discover}, schema.FailNoBoot, []string{"0c:42:a1:00:00:01", "another DHCP server"}},
		"a pool that is full says so":    {on, []ev{{Kind: boot.KindDiscover, MAC: "m", Result: "no free address"}}, schema.FailNoBoot, []string{"no free address"}},
		"has an address":                 {on, []ev{discover, ack}, schema.FailNoBoot, []string{"10.1.0.7", "UDP 69"}},
		"fetched the boot loader":        {on, []ev{discover, ack, tftp}, schema.FailInstall, []string{"ipxe.efi", "Secure Boot"}},
		"took its script":                {on, []ev{discover, ack, tftp, script}, schema.FailInstall, []string{"install script", "console"}},
		"its boot loader is not there":   {on, []ev{discover, ack, {Kind: boot.KindTFTP, MAC: "0c:42:a1:00:00:01", What: "own.efi", Result: "no such file"}}, schema.FailNoBoot, []string{"asked for its boot loader own.efi", "no such file", "pxe.boot_dir"}},
		"its kernel is not there":        {on, []ev{discover, ack, tftp, script, {Kind: boot.KindHTTP, What: "image/x86_64/vmlinuz", Result: "no such file"}}, schema.FailInstall, []string{"asked for image/x86_64/vmlinuz", "pxe.boot_dir", "profile"}},
		"fetched its kernel and hangs":   {on, []ev{discover, ack, tftp, script, {Kind: boot.KindHTTP, What: "image/x86_64/vmlinuz", Bytes: 9 << 20, Result: "ok"}}, schema.FailInstall, []string{"fetched image/x86_64/vmlinuz (9437184 bytes", "asked for no document", "console"}},
		"was told to boot from disk":     {on, []ev{discover, ack, {Kind: boot.KindScript, What: "script.ipxe: boot from disk", Result: "ok: no attempt has armed it"}}, schema.FailNoBoot, []string{"boot from disk", "no attempt has armed it"}},
		"the installer ran":              {on, []ev{discover, ack, tftp, script, {Kind: boot.KindDocument, What: "user-data", Result: "ok"}}, schema.FailInstall, []string{"installer ran", "nobody phoned home"}},
		"the loader loops":               {on, []ev{discover, ack, tftp, {Kind: boot.KindLoop}}, schema.FailBootLoop, []string{"again and again"}},
		"someone else took the script":   {on, []ev{discover, ack, {Kind: boot.KindRefused, What: "script.ipxe", IP: "10.1.0.9", Result: "already given out"}}, schema.FailInstall, []string{"already given out", "10.1.0.9"}},
		"a refusal after the real fetch": {on, []ev{script, {Kind: boot.KindDocument, What: "user-data"}, {Kind: boot.KindToken, Result: "used"}}, schema.FailInstall, []string{"installer ran"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var events []schema.Event
			for _, e := range c.seen {
				b, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, schema.Event{At: 1_700_000_000_000, Kind: schema.EventBoot, Data: b})
			}
			f := diagnose(c.in, events)
			if f.Code != c.code {
				t.Errorf("code %s, want %s: %s", f.Code, c.code, f.Text)
			}
			for _, w := range append(c.words, "Proven: ", "Not proven: ", "To do: ") {
				if !strings.Contains(f.Text, w) {
					t.Errorf("it does not say %q: %s", w, f.Text)
				}
			}
		})
	}
}
