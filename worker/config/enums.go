package config

import "slices"

// Role is a part of gpupool that can run as a process of its own.
type Role string

const (
	RoleAPI       Role = "api"       // REST API and console; any number of processes
	RoleWorker    Role = "worker"    // workflows, and the activities of its sites
	RoleAllocator Role = "allocator" // the hot allocators of its regions
	RolePXE       Role = "pxe"       // network boot for its sites; active and standby
)

// Roles are all roles, as `gpupool up` runs them.
func Roles() []Role { return []Role{RoleAPI, RoleWorker, RoleAllocator, RolePXE} }

// Valid says whether r is a role.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// Driver is the kind of database.
type Driver string

const (
	SQLite   Driver = "sqlite"
	Postgres Driver = "postgres"
)

// Valid says whether d is a driver.
func (d Driver) Valid() bool { return d == SQLite || d == Postgres }

// Durability is how hard SQLite pushes a commit to the disk. PostgreSQL has its own setting.
type Durability string

const (
	DurabilityFull   Durability = "full"
	DurabilityNormal Durability = "normal"
)

// Valid says whether d is a durability.
func (d Durability) Valid() bool { return d == DurabilityFull || d == DurabilityNormal }

// Mode is where Temporal runs.
type Mode string

const (
	Embedded Mode = "embedded"
	External Mode = "external"
)

// Valid says whether m is a mode.
func (m Mode) Valid() bool { return m == Embedded || m == External }

// PXEMode is how the DHCP service behaves.
type PXEMode string

const (
	PXEOff   PXEMode = "off"
	PXEFull  PXEMode = "full"
	PXEProxy PXEMode = "proxy"
	PXERelay PXEMode = "relay"
)

// Valid says whether m is a mode.
func (m PXEMode) Valid() bool {
	return slices.Contains([]PXEMode{PXEOff, PXEFull, PXEProxy, PXERelay}, m)
}

// Off is the listen address of a service that is left out, where that may be.
const Off = "off"

// LogLevel is the least severe message that is written.
type LogLevel string

const (
	LevelDebug LogLevel = "debug"
	LevelInfo  LogLevel = "info"
	LevelWarn  LogLevel = "warn"
	LevelError LogLevel = "error"
)

// Valid says whether l is a level.
func (l LogLevel) Valid() bool {
	return slices.Contains([]LogLevel{LevelDebug, LevelInfo, LevelWarn, LevelError}, l)
}

// LogFormat is the shape of a log line.
type LogFormat string

const (
	FormatAuto LogFormat = "auto"
	FormatText LogFormat = "text"
	FormatJSON LogFormat = "json"
)

// Valid says whether f is a format.
func (f LogFormat) Valid() bool {
	return slices.Contains([]LogFormat{FormatAuto, FormatText, FormatJSON}, f)
}
