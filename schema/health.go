package schema

// HealthRule is one rule that judges evidence, as it is in force, with what came of it.
type HealthRule struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Codes    []string `json:"codes,omitempty"`
	Severity Severity `json:"severity,omitempty"`  // the least that the source must have given it
	Above    float64  `json:"above,omitempty"`     // the least value, in the kind's unit
	Count    int      `json:"count,omitempty"`     // how often
	Within   int64    `json:"within_ms,omitempty"` // of so long
	Across   bool     `json:"across,omitempty"`    // counted over repairs
	Beside   string   `json:"beside,omitempty"`    // another code that must have come
	Action   Action   `json:"action"`
	Cure     Cure     `json:"cure,omitempty"`
	Corrupts bool     `json:"corrupts,omitempty"` // no limit holds it back
	Mode     string   `json:"mode"`               // off, observe, enforce
	Why      string   `json:"why"`
	Source   string   `json:"source"`
	Changed  string   `json:"changed,omitempty"` // by whom and why; empty = as it was built in

	Met            int `json:"met"`             // faults that it decided, over 30 days
	Repairs        int `json:"repairs"`         // repairs that those were reason for
	FalsePositives int `json:"false_positives"` // of those: passed the burn-in untouched, and no fault since
}

// RuleChange is what an operator changed of a built-in rule; zero fields leave the rule's own.
type RuleChange struct {
	Rule   string  `gorm:"primaryKey" json:"rule"`
	Mode   string  `json:"mode,omitempty"` // off, observe, enforce
	Count  int     `json:"count,omitempty"`
	Within int64   `gorm:"column:within_ms" json:"within_ms,omitempty"`
	Above  float64 `json:"above,omitempty"`
	Action Action  `json:"action,omitempty"`
	Cure   Cure    `json:"cure,omitempty"`
	By     string  `json:"by"`
	Reason string  `json:"reason"`
	At     Instant `json:"at"`
}

// Silence keeps evidence that fits it from being acted on until a moment. Empty fields fit everything.
type Silence struct {
	ID          string  `gorm:"primaryKey" json:"id"`
	Rule        string  `json:"rule,omitempty"`
	Kind        string  `json:"kind,omitempty"`
	Code        string  `json:"code,omitempty"`
	Server      string  `json:"server,omitempty"`
	Accelerator string  `json:"accelerator,omitempty"`
	Until       Instant `json:"until"`
	By          string  `json:"by"`
	Reason      string  `json:"reason"`
	At          Instant `json:"at"`
	EndedAt     Instant `json:"ended_at"` // ended by a person before its time
	EndedBy     string  `json:"ended_by,omitempty"`
}

// Breaker says that nothing of a scope is taken out automatically any more, until a person resets it.
type Breaker struct {
	ID       string  `gorm:"primaryKey" json:"id"`
	Scope    string  `json:"scope"` // model <region>/<model>, rack <site>/<rack>, code <kind>/<code>
	Why      string  `json:"why"`
	OpenedAt Instant `json:"opened_at"`
	ResetAt  Instant `json:"reset_at"`
	ResetBy  string  `json:"reset_by,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	// Held are the faults that are not acted on because of it, while it is open.
	Held []HeldFault `gorm:"-" json:"held,omitempty"`
}

// HeldFault is one that an open breaker holds back.
type HeldFault struct {
	Breaker     string  `json:"breaker"`
	Fault       string  `json:"fault"`
	Server      string  `json:"server"`
	ServerName  string  `json:"server_name"`
	Accelerator string  `json:"accelerator,omitempty"` // empty: about the server
	Slot        string  `json:"slot,omitempty"`
	Kind        string  `json:"kind"`
	Code        string  `json:"code,omitempty"`
	Text        string  `json:"text"`
	At          Instant `json:"at"`
}

// Replay is what rules would have made of evidence of the past.
type Replay struct {
	Since   Instant       `json:"since"`
	Faults  int           `json:"faults"`  // that were judged anew
	Actions []ActionCount `json:"actions"` // by rule and action, the most frequent first
	// Before are Actions by the rules in force, where a change of them was tried.
	Before []ActionCount `json:"before,omitempty"`
	// Differ are the faults of which something else would have been found: with a change, than by the rules in force; without,
	// than was.
	Differ []ReplayedFault `json:"differ"`
	Cut    bool            `json:"cut,omitempty"` // there was more than is shown
}

// ActionCount is how often a rule would have asked for an action.
type ActionCount struct {
	Rule    string `json:"rule"` // empty = no rule knew it
	Action  Action `json:"action"`
	Faults  int    `json:"faults"`
	Servers int    `json:"servers"`
}

// ReplayedFault is one of a replay.
type ReplayedFault struct {
	Fault   string  `json:"fault"`
	Server  string  `json:"server"`
	At      Instant `json:"at"`
	Text    string  `json:"text"`
	Then    string  `json:"then"` // the verdict as it was, or by the rules in force where a change was tried
	Rule    string  `json:"rule"`
	Verdict Action  `json:"verdict"` // as it would have been
}

// HealthTimes are how long the steps of repairs took, and how often hardware fails.
type HealthTimes struct {
	Since    Instant     `json:"since"`
	Repairs  int         `json:"repairs"` // opened since
	Steps    []StepTimes `json:"steps"`
	Returned int         `json:"returned"` // of them; 0 = the shares below are not known
	// MTBF is the time of servers in the pool for one repair; 0 = none was opened.
	MTBFHours    float64 `json:"mtbf_hours"`
	FirstPass    float64 `json:"first_pass_ratio"`  // of the repairs that returned, those whose first proof passed
	Repeat7d     float64 `json:"repeat_7d_ratio"`   // of those that returned, those opened again within 7 days
	Repeat30d    float64 `json:"repeat_30d_ratio"`  //
	FalsePos     float64 `json:"false_pos_ratio"`   // passed untouched, and no fault since
	ResetsAlone  float64 `json:"resets_only_ratio"` // returned without a technician
	LostByCause  []Lost  `json:"lost"`
	LostGPUHours float64 `json:"lost_gpu_hours"`
}

// StepTimes are how long one step took, in seconds.
type StepTimes struct {
	Step  string  `json:"step"` // detect, drain, reset, wait, hands-on, prove, whole
	Count int     `json:"count"`
	Mean  float64 `json:"mean_s"`
	P50   float64 `json:"p50_s"`
	P90   float64 `json:"p90_s"`
	Max   float64 `json:"max_s"`
}

// Lost are the accelerator-hours that a cause kept out of the pool.
type Lost struct {
	Rule     string  `json:"rule"`
	Repairs  int     `json:"repairs"`
	GPUHours float64 `json:"gpu_hours"`
}

// Lemon is a device, or a slot, that comes back too often.
type Lemon struct {
	Serial   string `json:"serial,omitempty"` // of a device
	Server   string `json:"server,omitempty"` // of a slot
	Slot     string `json:"slot,omitempty"`
	Devices  int    `json:"devices"` // different ones: a slot with several is to blame itself
	Repairs  int    `json:"repairs"`
	Unproven int    `json:"unproven"` // proofs that failed
	Faults   int    `json:"faults"`   // that were acted on
	Score    int    `json:"score"`    // 3 for each repair, 2 for each failed proof, 1 for each fault
}
