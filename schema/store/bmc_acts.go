package store

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"gpupool/schema"
)

// changesServer says whether a verb takes the server away from what runs on it.
func changesServer(verb schema.BMCVerb, args schema.BMCArgs) bool {
	switch {
	case verb == schema.BMCPower:
		return args.Want != "" && args.Want != "on"
	case verb == schema.BMCBoot:
		return args.From != ""
	}
	// What the others set decides what the next boot ends in, whenever that comes.
	return verb == schema.BMCOrder && len(args.First) > 0 || verb == schema.BMCBIOS && len(args.Attributes) > 0 || verb == schema.BMCMedia && args.Image != ""
}

// AskBMC keeps what a person asks of a server's BMC; the event that tells of it starts the process. What may not be done
// now is refused at once, and asked again at the moment of the act: see BeginBMCAct.
func (s *Store) AskBMC(ctx context.Context, server string, verb schema.BMCVerb, args schema.BMCArgs, reason, by string) (schema.BMCAct, error) {
	if err := checkBMCArgs(verb, args); err != nil {
		return schema.BMCAct{}, err
	}
	var a schema.BMCAct
	err := s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		a, err = tx.askBMC(v, verb, args, reason, by)
		return err
	})
	return a, err
}

func (tx *Tx) askBMC(v schema.Server, verb schema.BMCVerb, args schema.BMCArgs, reason, by string) (schema.BMCAct, error) {
	if err := tx.mayOperate(v, verb, args); err != nil {
		return schema.BMCAct{}, err
	}
	a := schema.BMCAct{ID: NewID("bmc", tx.now), Server: v.ID, Verb: verb, Args: args, By: by, Reason: reason, AskedAt: tx.now, Result: json.RawMessage("null")}
	tx.Emit(schema.Event{Kind: schema.EventBMCAsked, Subject: a.ID, Server: v.ID, By: by}, map[string]any{"verb": verb, "args": args, "reason": reason, "site": v.Site})
	return a, tx.db.Create(&a).Error
}

func checkBMCArgs(verb schema.BMCVerb, a schema.BMCArgs) error {
	switch {
	case !slices.Contains(schema.BMCVerbs, verb):
		return schema.Invalid("verb", string(verb), schema.OneOf(schema.BMCVerbs))
	case verb == schema.BMCPower && !slices.Contains([]string{"", "on", "off", "cycle", "ac-cycle"}, a.Want):
		return schema.Invalid("want", a.Want, "on, off, cycle, ac-cycle, or nothing to read it")
	case verb == schema.BMCBoot && !slices.Contains([]string{"", "network", "disk"}, a.From):
		return schema.Invalid("from", a.From, "network (once), disk (no override), or nothing to read it")
	case a.Most < 0 || a.Most > 1000:
		return schema.Invalid("most", a.Most, "1 to 1000 entries, or 0 for 50")
	case a.Seconds < 0 || a.Seconds > 300:
		return schema.Invalid("seconds", a.Seconds, "1 to 300, or 0 for 5")
	case a.Image != "" && a.Eject:
		return schema.Invalid("eject", a.Eject, "false where an image is given: it takes the place of the one before")
	case a.Image != "" && !imageURI(a.Image):
		return schema.Invalid("image", a.Image, "an http, https, nfs or cifs URI that the BMC reaches, without a password in it")
	}
	for name := range a.Attributes {
		if name == "" || len(name) > 200 || strings.ContainsFunc(name, unicode.IsControl) {
			return schema.Invalid("attributes", name, "names of 1 to 200 characters on one line, as `gpupool bmc bios` shows them")
		}
		if schema.PasswordAttribute(name) {
			return schema.Invalid("attributes", name, "no password: what is asked for is kept and shown; set it at the machine")
		}
	}
	return foreignBMCArg(verb, a)
}

// imageURI reports whether a BMC can be told to fetch an image there. A password in it would be kept and shown.
func imageURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && u.User == nil && len(s) <= 2000 && slices.Contains([]string{"http", "https", "nfs", "cifs"}, u.Scheme)
}

// foreignBMCArg refuses an argument that the verb does not read: whoever gives one means something else than will be done.
func foreignBMCArg(verb schema.BMCVerb, a schema.BMCArgs) error {
	for _, f := range []struct {
		name  string
		of    schema.BMCVerb
		value any
		given bool
	}{
		{"want", schema.BMCPower, a.Want, a.Want != ""}, {"hard", schema.BMCPower, a.Hard, a.Hard}, {"from", schema.BMCBoot, a.From, a.From != ""},
		{"lit", schema.BMCLight, a.Lit, a.Lit}, {"most", schema.BMCLogs, a.Most, a.Most != 0}, {"seconds", schema.BMCConsole, a.Seconds, a.Seconds != 0},
		{"first", schema.BMCOrder, strings.Join(a.First, " "), len(a.First) > 0}, {"attributes", schema.BMCBIOS, len(a.Attributes), len(a.Attributes) > 0},
		{"image", schema.BMCMedia, a.Image, a.Image != ""}, {"eject", schema.BMCMedia, a.Eject, a.Eject},
	} {
		if f.given && f.of != verb {
			return schema.Invalid(f.name, f.value, fmt.Sprintf("nothing: it belongs to %s, and the verb is %s", f.of, verb))
		}
	}
	if a.Hard && (a.Want == "" || a.Want == "on") {
		return schema.Invalid("hard", a.Hard, "true only where want takes the power away")
	}
	return nil
}

// mayOperate is the safety rule of a person's verbs: what cuts a server off from what runs on it needs a server that runs
// nothing and can be given nothing, and that no process is just installing.
func (tx *Tx) mayOperate(v schema.Server, verb schema.BMCVerb, args schema.BMCArgs) error {
	if v.Phase == schema.PhaseRetired && verb != schema.BMCIdentify {
		return schema.Conflict("server "+v.Name+" is retired", "its BMC is not spoken to any more")
	}
	if !changesServer(verb, args) {
		return nil
	}
	switch v.Phase {
	case schema.PhaseOnboarding:
		return schema.Unsafe("server "+v.Name+" is onboarding: its process drives the BMC", "abort the onboarding first")
	case schema.PhaseAvailable:
		var cordons int64
		if err := tx.db.Raw("SELECT count(*) FROM cordons WHERE server = ? AND accelerator = '' AND lifted_at = 0", v.ID).Scan(&cordons).Error; err != nil {
			return err
		}
		if cordons == 0 {
			return schema.Unsafe("server "+v.Name+" is available: a job may be placed on it at any moment", "drain or cordon it first")
		}
	case schema.PhaseEnrolled, schema.PhaseDraining, schema.PhaseRepairing, schema.PhaseRetiring, schema.PhaseRetired:
		// Nothing can be placed there; what may still run there is looked at below.
	}
	return tx.destructible(v)
}

// BMCAct finds one by id.
func (s *Store) BMCAct(ctx context.Context, id string) (schema.BMCAct, error) {
	var a schema.BMCAct
	return a, one(s.read(ctx).Where("id = ?", id).Take(&a).Error, "BMC act", id)
}

// BMCActs lists a server's, the newest first.
func (s *Store) BMCActs(ctx context.Context, server string, most int) ([]schema.BMCAct, error) {
	var out []schema.BMCAct
	return out, s.read(ctx).Where("server = ?", server).Order("asked_at DESC, id DESC").Limit(most).Find(&out).Error
}

// BeginBMCAct asks, at the moment of the act, whether it may be done. It is false where it has ended already.
func (s *Store) BeginBMCAct(ctx context.Context, id string) (a schema.BMCAct, v schema.Server, live bool, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.db.Where("id = ?", id).Take(&a).Error, "BMC act", id); err != nil {
			return err
		}
		if v, err = tx.server(a.Server); err != nil || a.EndedAt != 0 {
			return err
		}
		live = true
		if a.StartedAt == 0 {
			a.StartedAt, a.Version = tx.now, a.Version+1
			if err := tx.db.Save(&a).Error; err != nil {
				return err
			}
		}
		return tx.mayOperate(v, a.Verb, a.Args)
	})
	return a, v, live, err
}

// EndBMCAct keeps what came of it, once: result, with a file where the verb makes one, or the failure.
func (s *Store) EndBMCAct(ctx context.Context, id string, result any, file *BMCFile, failure error) error {
	return s.Write(ctx, func(tx *Tx) error {
		var a schema.BMCAct
		if err := one(tx.lock(&a, "id = ?", id), "BMC act", id); err != nil || a.EndedAt != 0 {
			return err
		}
		a.EndedAt, a.Version = tx.now, a.Version+1
		if failure != nil {
			a.FailureCode, a.Failure = schema.CodeOf(failure), failure.Error()
		} else if result != nil {
			b, err := json.Marshal(result)
			if err != nil {
				return fmt.Errorf("result of %s: %w", a.Verb, err)
			}
			a.Result = b
		}
		if file != nil {
			if _, err := tx.exec("INSERT INTO bmc_files (act, name, content, at) VALUES (?, ?, ?, ?)", id, file.Name, file.Content, tx.now); err != nil {
				return err
			}
		}
		tx.Emit(schema.Event{Kind: schema.EventBMCEnded, Subject: a.ID, Server: a.Server, By: a.By}, map[string]any{"verb": a.Verb, "failure": a.Failure, "code": a.FailureCode})
		return tx.db.Save(&a).Error
	})
}

// BMCFile is a file that an act made: Content is base64.
type BMCFile struct{ Name, Content string }

// BMCFile reads an act's; CodeNotFound where it has none.
func (s *Store) BMCFile(ctx context.Context, act string) (BMCFile, error) {
	var f BMCFile
	err := s.read(ctx).Raw("SELECT name, content FROM bmc_files WHERE act = ?", act).Scan(&f).Error
	if err == nil && f.Name == "" {
		err = schema.NotFound("file of BMC act", act)
	}
	return f, err
}
