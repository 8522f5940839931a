package schema

// WindowKind is what a window is for.
type WindowKind string

const (
	WindowMaintenance WindowKind = "maintenance" // for nobody
	WindowReservation WindowKind = "reservation" // for a tenant, or one of its projects
)

// Window is a time when servers are not for everybody. A job that would run into one that is not for it does not start
// there; what runs already is not stopped.
type Window struct {
	ID        string     `gorm:"primaryKey" json:"id"`
	Kind      WindowKind `json:"kind"`
	Servers   []string   `gorm:"-" json:"servers"`      // ids; a tenant is told only of its own reservations
	Count     int        `gorm:"-" json:"server_count"` // how many servers it is on
	From      Instant    `gorm:"column:from_at" json:"from"`
	Until     Instant    `gorm:"column:until_at" json:"until"` // 0 = until it is removed
	Tenant    string     `json:"tenant"`                       // of a reservation
	Project   string     `json:"project"`                      // of a reservation; empty = all of the tenant
	Note      string     `json:"note"`
	By        string     `json:"by"`
	CreatedAt Instant    `gorm:"autoCreateTime:false" json:"created_at"`
}

// Over reports whether it has passed at a moment.
func (w Window) Over(now Instant) bool { return w.Until != 0 && w.Until <= now }

// Bars reports whether a job of a project that would hold its servers over [from, until) may not; until 0 = for ever.
func (w Window) Bars(tenant, project string, from, until Instant) bool {
	admits := w.Tenant != "" && w.Tenant == tenant && (w.Project == "" || w.Project == project)
	return !admits && (until == 0 || w.From < until) && (w.Until == 0 || from < w.Until)
}
