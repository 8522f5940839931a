package store

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"gpupool/schema"
	"gpupool/schema/hardware"
	"gpupool/schema/secret"
)

// NewServer is a server as an operator enrols it.
type NewServer struct {
	Name, Region, Site, Rack string
	Unit                     int
	Serial                   string
	MACs                     []string
	Arch                     string // empty = x86_64
	BMCAddress               string
	BMCProtocol              string // empty = redfish
	BMCSystem                string // the Redfish system that it is, where the BMC serves several servers; empty = it is found by its serial
	BMCUsername, BMCPassword string // may be empty where another server of the same BMC is enrolled
	Model                    string
	Accelerators             int
	CPUs                     int
	MemoryBytes              int64
	Build                    string // empty = the build named as Model, if there is one
	Profile                  string // empty = as its rack's or model's is chosen; see InstallChoiceOf
	Backend                  string // empty = node
	Cluster                  string // with another backend: the cluster that it is a node of
	NVLinkDomain             string
	Again                    bool // what of its name, serial and MACs retired servers have is taken over from them
}

// NamePattern is what names of servers, racks, sites, regions, tenants, projects and specs look like.
var NamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// systemPattern is what the id of a Redfish system looks like.
var systemPattern = regexp.MustCompile(`^[A-Za-z0-9._~:-]{1,128}$`)

const nameRight = "1 to 63 of a-z 0-9 . _ -, beginning and ending with a letter or digit"

// MaxAccelerators is the most a server or a spec may have.
const MaxAccelerators = 64

func (n *NewServer) check(at string) error {
	for _, f := range []struct{ field, value string }{{"name", n.Name}, {"region", n.Region}, {"site", n.Site}, {"rack", n.Rack}, {"model", n.Model}} {
		if !NamePattern.MatchString(f.value) {
			return schema.Invalid(at+f.field, f.value, nameRight)
		}
	}
	if n.Serial = strings.TrimSpace(n.Serial); n.Serial == "" || len(n.Serial) > 128 {
		return schema.Invalid(at+"serial", n.Serial, "the chassis serial number, as printed and as the BMC tells it")
	}
	if n.Unit < 0 || n.Unit > 100 {
		return schema.Invalid(at+"unit", n.Unit, "a rack unit from 1 to 100, or 0 for not told")
	}
	if n.Arch == "" {
		n.Arch = "x86_64"
	}
	if n.Arch != "x86_64" && n.Arch != "arm64" {
		return schema.Invalid(at+"arch", n.Arch, "x86_64 or arm64")
	}
	if n.BMCProtocol == "" {
		n.BMCProtocol = "redfish"
	}
	if n.BMCProtocol != "redfish" && n.BMCProtocol != "ipmi" {
		return schema.Invalid(at+"bmc_protocol", n.BMCProtocol, "redfish or ipmi")
	}
	u, err := url.Parse(n.BMCAddress)
	if err != nil || (u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "ipmi") || !schema.ValidHost(u) || u.User != nil || (u.Path != "" && u.Path != "/") {
		return schema.Invalid(at+"bmc_address", n.BMCAddress, "https://host[:port], with no path and no password in it")
	}
	n.BMCAddress = u.Scheme + "://" + strings.ToLower(u.Host)
	if n.BMCSystem != "" && (!systemPattern.MatchString(n.BMCSystem) || n.BMCProtocol != "redfish") {
		return schema.Invalid(at+"bmc_system", n.BMCSystem, "with protocol redfish the id of one of the BMC's systems, like Node2: the last part of its path below /redfish/v1/Systems")
	}
	if len(n.MACs) == 0 {
		return schema.Invalid(at+"macs", "", "at least the MAC of the interface that boots, like 0c:42:a1:00:00:01")
	}
	for i, m := range n.MACs {
		hw, err := net.ParseMAC(m)
		if err != nil || len(hw) != 6 || hw[0]&1 == 1 || slices.Equal(hw, net.HardwareAddr{0, 0, 0, 0, 0, 0}) {
			return schema.Invalid(fmt.Sprintf("%smacs[%d]", at, i), m, "a unicast MAC of 6 bytes, like 0c:42:a1:00:00:01")
		}
		n.MACs[i] = hw.String()
	}
	if n.Accelerators < 1 || n.Accelerators > MaxAccelerators {
		return schema.Invalid(at+"accelerators", n.Accelerators, fmt.Sprintf("1 to %d", MaxAccelerators))
	}
	if n.CPUs < 1 || n.CPUs > 8192 {
		return schema.Invalid(at+"cpus", n.CPUs, "1 to 8192 cores")
	}
	if n.MemoryBytes < 1<<30 || n.MemoryBytes > 1<<50 {
		return schema.Invalid(at+"memory_bytes", n.MemoryBytes, "1 GiB to 1 PiB, in bytes")
	}
	if n.Build != "" && !NamePattern.MatchString(n.Build) {
		return schema.Invalid(at+"build", n.Build, "a build's name")
	}
	if n.Profile != "" && !NamePattern.MatchString(n.Profile) {
		return schema.Invalid(at+"profile", n.Profile, "an install profile's name")
	}
	if n.Backend == "" {
		n.Backend = "node"
	}
	if n.Backend != "node" && n.Backend != "slurm" && n.Backend != "kubernetes" {
		return schema.Invalid(at+"backend", n.Backend, "node, slurm or kubernetes")
	}
	if n.Backend == "node" && n.Cluster != "" {
		return schema.Invalid(at+"cluster", n.Cluster, "left out with backend node")
	}
	if n.Backend != "node" && !NamePattern.MatchString(n.Cluster) {
		return schema.Invalid(at+"cluster", n.Cluster, "the name of the "+n.Backend+" cluster that it is a node of, as in the configuration")
	}
	if n.NVLinkDomain != "" && !NamePattern.MatchString(n.NVLinkDomain) {
		return schema.Invalid(at+"nvlink_domain", n.NVLinkDomain, nameRight)
	}
	return nil
}

// EnrollServers adds servers, all or none. Errors name the entry: servers[3].serial.
func (s *Store) EnrollServers(ctx context.Context, by string, ring *secret.Ring, in []NewServer) ([]schema.Server, error) {
	if len(in) == 0 {
		return nil, schema.Invalid("servers", "", "at least one server")
	}
	seen := map[string]int{}
	for i := range in {
		at := fmt.Sprintf("servers[%d].", i)
		if len(in) == 1 {
			at = ""
		}
		if err := in[i].check(at); err != nil {
			return nil, err
		}
		keys := [][2]string{{"name", in[i].Name}, {"serial", strings.ToUpper(in[i].Serial)}}
		for _, m := range in[i].MACs {
			keys = append(keys, [2]string{"macs", m})
		}
		for _, k := range keys {
			if j, dup := seen[k[0]+" "+k[1]]; dup {
				return nil, &schema.Error{Code: schema.CodeInvalid, Field: at + k[0], Message: fmt.Sprintf("%q is there already", k[1]), Hint: fmt.Sprintf("servers[%d] has it too; each server has its own", j)}
			}
			seen[k[0]+" "+k[1]] = i
		}
	}
	var out []schema.Server
	err := s.Write(ctx, func(tx *Tx) error {
		out = nil
		for i, n := range in { // those behind one BMC find each other in the record
			at := fmt.Sprintf("servers[%d].", i)
			if len(in) == 1 {
				at = ""
			}
			before := "" // the retired server that it takes something over from
			// A serial is the same however it was typed: two entries for one machine would wipe it twice.
			for _, k := range []struct{ field, where, value string }{{"name", "name = ?", n.Name}, {"serial", "upper(serial) = upper(?)", n.Serial}} {
				old, err := tx.takeOver(at+k.field, k.value, n.Again, k.where, k.value)
				if err != nil {
					return err
				}
				before = cmp.Or(before, old)
			}
			v := schema.Server{ID: NewID("srv", tx.now), Name: n.Name, Region: n.Region, Site: n.Site, Rack: n.Rack, Unit: n.Unit, Serial: n.Serial, MACs: strings.Join(n.MACs, ","),
				Arch: n.Arch, BMCAddress: n.BMCAddress, BMCProtocol: n.BMCProtocol, BMCSystem: n.BMCSystem, BMCPlace: n.bmcPlace(), Model: n.Model, Accelerators: n.Accelerators, CPUs: n.CPUs, MemoryBytes: n.MemoryBytes, Build: n.Build,
				Profile: n.Profile, Backend: n.Backend, Cluster: n.Cluster, NVLinkDomain: n.NVLinkDomain, Phase: schema.PhaseEnrolled, CreatedAt: tx.now, UpdatedAt: tx.now}
			if n.Build != "" {
				if err := tx.lock(&hardware.Build{}, "name = ?", n.Build); isNoRows(err) {
					return schema.Invalid(at+"build", n.Build, "the name of a build that is there: gpupool build list")
				} else if err != nil {
					return err
				}
			}
			if err := tx.mustBeAllowed(at+"serial", n.Site, n.Serial); err != nil {
				return err
			}
			neighbour, err := tx.placeAtBMC(at, n)
			if err != nil {
				return err
			}
			if err := tx.db.Create(&v).Error; err != nil {
				return err
			}
			if err := tx.keepBMCLogin(at, n, v.ID, neighbour, ring); err != nil {
				return err
			}
			for _, m := range n.MACs {
				old, err := tx.takeOver(at+"macs", m, n.Again, "id = (SELECT server FROM server_macs WHERE mac = ?)", m)
				if err != nil {
					return err
				}
				before = cmp.Or(before, old)
				if _, err := tx.exec("DELETE FROM server_macs WHERE mac = ?", m); err != nil { // a retired server's, by now
					return err
				}
				if _, err := tx.exec("INSERT INTO server_macs (mac, server) VALUES (?, ?)", m, v.ID); err != nil {
					return err
				}
			}
			tx.Emit(schema.Event{Kind: schema.EventServerEnrolled, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"name": v.Name, "serial": v.Serial, "before": before})
			out = append(out, v)
		}
		return nil
	})
	if what, dup := unique(err); dup { // PostgreSQL: another process enrolled the same in the meantime
		return nil, schema.Conflict("another enrolment has taken one of these ("+what+")", "list the servers and try again")
	}
	return out, err
}

// BMCCredential opens the sealed password of a server's BMC.
func (s *Store) BMCCredential(ctx context.Context, server string, ring *secret.Ring) (username, password string, err error) {
	row, err := s.BMCLogin(ctx, server)
	if err != nil {
		return "", "", err
	}
	plain, err := ring.Open(row.KeyID, row.Sealed, row.Server)
	if err != nil {
		return "", "", fmt.Errorf("BMC credential of %s: %w", server, err)
	}
	return row.Username, string(plain), nil
}

// Server finds one by id or name.
func (s *Store) Server(ctx context.Context, idOrName string) (schema.Server, error) {
	var v schema.Server
	return v, one(s.read(ctx).Where("id = ? OR name = ?", idOrName, idOrName).Take(&v).Error, "server", idOrName)
}

// ServerMACs is every MAC that a server has.
func (s *Store) ServerMACs(ctx context.Context) ([]string, error) {
	var out []string
	return out, s.read(ctx).Raw("SELECT mac FROM server_macs ORDER BY mac").Scan(&out).Error
}

// ServerFilter narrows Servers; empty fields don't.
type ServerFilter struct {
	Region, Site, Rack string
	Phase              schema.Phase
	Failed             bool // only those that stopped and wait for a person
	Paused             bool // only those whose onboarding stands at a pause
}

// Servers lists by name.
func (s *Store) Servers(ctx context.Context, f ServerFilter) ([]schema.Server, error) {
	q := s.read(ctx).Order("name")
	for col, v := range map[string]string{"region": f.Region, "site": f.Site, "rack": f.Rack, "phase": string(f.Phase)} {
		if v != "" {
			q = q.Where(col+" = ?", v)
		}
	}
	if f.Failed {
		q = q.Where("failure_code <> ''")
	}
	if f.Paused {
		q = q.Where("failure_code = '' AND pause_held_at <> 0")
	}
	var out []schema.Server
	return out, q.Find(&out).Error
}

// Cordons are the live ones of a server; of all servers where server is empty.
func (s *Store) Cordons(ctx context.Context, server string) ([]schema.Cordon, error) {
	q := s.read(ctx).Where("lifted_at = 0").Order("at")
	if server != "" {
		q = q.Where("server = ?", server)
	}
	var out []schema.Cordon
	return out, q.Find(&out).Error
}

// server reads one for change within tx.
func (tx *Tx) server(idOrName string) (schema.Server, error) {
	var v schema.Server
	return v, one(tx.lock(&v, "id = ? OR name = ?", idOrName, idOrName), "server", idOrName)
}

// saveServer writes the columns that change in a server's life.
func (tx *Tx) saveServer(v *schema.Server) error {
	v.UpdatedAt, v.Version = tx.now, v.Version+1
	return tx.db.Save(v).Error
}

// setPhase changes the phase by the lifecycle table, clearing any failure.
func (tx *Tx) setPhase(v *schema.Server, to schema.Phase, by, why string) error {
	if err := schema.Phases.Check("server "+v.Name, v.Phase, to); err != nil {
		return err
	}
	from := v.Phase
	v.Phase = to
	v.FailureCode, v.FailureText, v.FailureRetryable, v.Pause = "", "", false, schema.Pause{}
	tx.Emit(schema.Event{Kind: schema.EventServerPhase, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"from": from, "to": to, "why": why, "attempt": v.Attempt})
	return tx.saveServer(v)
}

// Cordon keeps new jobs off a server or one accelerator. The same owner's second cordon renews the reason.
func (s *Store) Cordon(ctx context.Context, server, accelerator string, owner schema.CordonOwner, by, reason string) (schema.Cordon, error) {
	var c schema.Cordon
	err := s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		c, err = tx.cordon(v, accelerator, owner, by, reason)
		return err
	})
	return c, err
}

func (tx *Tx) cordon(v schema.Server, accelerator string, owner schema.CordonOwner, by, reason string) (schema.Cordon, error) {
	if strings.TrimSpace(reason) == "" {
		return schema.Cordon{}, schema.Invalid("reason", reason, "why, in words: the next person reads it")
	}
	if v.Phase == schema.PhaseRetired {
		return schema.Cordon{}, schema.Conflict("server "+v.Name+" is retired", "nothing runs there")
	}
	if accelerator != "" {
		var n int64
		if err := tx.db.Raw("SELECT count(*) FROM accelerators WHERE id = ? AND server = ?", accelerator, v.ID).Scan(&n).Error; err != nil {
			return schema.Cordon{}, err
		}
		if n == 0 {
			return schema.Cordon{}, schema.NotFound("accelerator of server "+v.Name, accelerator)
		}
	}
	var c schema.Cordon
	err := tx.lock(&c, "server = ? AND accelerator = ? AND owner = ? AND lifted_at = 0", v.ID, accelerator, owner)
	switch {
	case err == nil:
		c.Reason, c.By = reason, by
		return c, tx.db.Save(&c).Error
	case !isNoRows(err):
		return c, err
	}
	c = schema.Cordon{ID: NewID("crd", tx.now), Server: v.ID, Accelerator: accelerator, Owner: owner, By: by, Reason: reason, At: tx.now}
	tx.Emit(schema.Event{Kind: schema.EventServerCordoned, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"owner": owner, "reason": reason, "accelerator": accelerator})
	return c, tx.db.Create(&c).Error
}

// Uncordon lifts the owner's own cordon; others stay.
func (s *Store) Uncordon(ctx context.Context, server, accelerator string, owner schema.CordonOwner, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		n, err := tx.uncordon(v, accelerator, owner, by)
		if err == nil && n == 0 {
			return schema.Conflict(fmt.Sprintf("server %s has no cordon of %s", v.Name, owner), "see its cordons: each owner lifts only its own")
		}
		return err
	})
}

func (tx *Tx) uncordon(v schema.Server, accelerator string, owner schema.CordonOwner, by string) (int64, error) {
	n, err := tx.exec("UPDATE cordons SET lifted_at = ?, lifted_by = ? WHERE server = ? AND accelerator = ? AND owner = ? AND lifted_at = 0", tx.now, by, v.ID, accelerator, owner)
	if err == nil && n > 0 {
		tx.Emit(schema.Event{Kind: schema.EventServerUncordoned, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"owner": owner, "accelerator": accelerator})
	}
	return n, err
}

// Drain cordons an available server for an operator and lets its jobs end; it is drained when none is left.
func (s *Store) Drain(ctx context.Context, server, by, reason string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if v.Phase != schema.PhaseAvailable {
			return schema.Phases.Check("server "+v.Name, v.Phase, schema.PhaseDraining)
		}
		if _, err := tx.cordon(v, "", schema.CordonOperator, by, reason); err != nil {
			return err
		}
		if err := tx.setPhase(&v, schema.PhaseDraining, by, reason); err != nil {
			return err
		}
		return tx.emitIfDrained(v)
	})
}

// Undrain takes an operator's drain back.
func (s *Store) Undrain(ctx context.Context, server, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if v.Phase != schema.PhaseDraining {
			return schema.Conflict(fmt.Sprintf("server %s is %s, not draining", v.Name, v.Phase), "there is no drain to take back")
		}
		var open int64
		if err := tx.db.Raw("SELECT count(*) FROM repairs WHERE server = ? AND closed_at = 0", v.ID).Scan(&open).Error; err != nil {
			return err
		}
		if open > 0 {
			return schema.Unsafe("server "+v.Name+" drains for a repair", "it returns when the repair is done and proven, or the repair is cancelled")
		}
		if err := tx.cancelRetirement(v, by); err != nil {
			return err
		}
		if _, err := tx.uncordon(v, "", schema.CordonOperator, by); err != nil {
			return err
		}
		return tx.setPhase(&v, schema.PhaseAvailable, by, "drain taken back")
	})
}

// emitIfDrained tells that a draining server holds no job any more.
func (tx *Tx) emitIfDrained(v schema.Server) error {
	n, err := tx.liveAllocations(v.ID)
	if err == nil && n == 0 {
		tx.Emit(schema.Event{Kind: schema.EventServerDrained, Subject: v.ID, Server: v.ID}, nil)
	}
	return err
}

func (tx *Tx) liveAllocations(server string) (int64, error) {
	var n int64
	err := tx.db.Raw("SELECT count(*) FROM allocations WHERE server = ? AND released_at = 0", server).Scan(&n).Error
	return n, err
}

// Protect sets the flag that refuses every destructive step.
func (s *Store) Protect(ctx context.Context, server string, on bool, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil || v.Protected == on {
			return err
		}
		v.Protected = on
		tx.Emit(schema.Event{Kind: schema.EventServerProtected, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"protected": on})
		return tx.saveServer(&v)
	})
}
