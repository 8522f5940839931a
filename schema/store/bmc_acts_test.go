package store_test

import (
	"errors"
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// Whoever gives a verb what it doesn't read means something else than would be done.
func TestAnArgumentOfAnotherBMCVerbIsRefusedByName(t *testing.T) {
	t.Parallel()
	s, ctx := storetest.Open(t), t.Context()
	v := storetest.Available(t, s, 1, "nvidia-h100-80gb", 8)
	own := map[schema.BMCVerb]string{schema.BMCPower: "want", schema.BMCBoot: "from", schema.BMCLight: "lit", schema.BMCLogs: "most", schema.BMCConsole: "seconds",
		schema.BMCOrder: "first", schema.BMCBIOS: "attributes", schema.BMCMedia: "image"}
	given := map[string]schema.BMCArgs{"want": {Want: "on"}, "from": {From: "disk"}, "lit": {Lit: true}, "most": {Most: 5}, "seconds": {Seconds: 5},
		"first": {First: []string{"Boot0001"}}, "attributes": {Attributes: map[string]string{"SRIOVEnable": "true"}}, "image": {Image: "http://10.0.0.1/x.iso"}}
	for _, verb := range schema.BMCVerbs {
		for field, args := range given {
			_, err := s.AskBMC(ctx, v.ID, verb, args, "", "op")
			var e *schema.Error
			refused := errors.As(err, &e) && e.Code == schema.CodeInvalid && e.Field == field && e.Hint != ""
			if mine := field == own[verb]; mine == refused {
				t.Errorf("%s with %s: %v", verb, field, err)
			}
		}
		for _, want := range []string{"", "on"} {
			var e *schema.Error
			args := schema.BMCArgs{Hard: true}
			if verb == schema.BMCPower {
				args.Want = want
			}
			if _, err := s.AskBMC(ctx, v.ID, verb, args, "", "op"); !errors.As(err, &e) || e.Field != "hard" {
				t.Errorf("%s %q with hard: %v", verb, want, err)
			}
		}
	}
}

// What is asked for is kept and shown, so a name that would break a terminal or a page is refused before it is kept.
func TestABIOSAttributesNameIsOneThatCanBeShown(t *testing.T) {
	t.Parallel()
	s, ctx := storetest.Open(t), t.Context()
	enrolled, err := s.EnrollServers(ctx, "op", storetest.Ring(t), []store.NewServer{storetest.NewServer(1, "nvidia-h100-80gb", 8)})
	if err != nil {
		t.Fatal(err)
	}
	v := enrolled[0]
	for what, name := range map[string]string{"empty": "", "an escape": "Boot\x1b[2J", "C1 control": "Boot\u009bMode", "a line break": "Boot\nMode", "too long": strings.Repeat("a", 201)} {
		var e *schema.Error
		_, err := s.AskBMC(ctx, v.ID, schema.BMCBIOS, schema.BMCArgs{Attributes: map[string]string{name: "1"}}, "", "op")
		if !errors.As(err, &e) || e.Code != schema.CodeInvalid || e.Field != "attributes" || e.Hint == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.AskBMC(ctx, v.ID, schema.BMCBIOS, schema.BMCArgs{Attributes: map[string]string{strings.Repeat("a", 200): "1"}}, "", "op"); err != nil {
		t.Error(err)
	}
}
