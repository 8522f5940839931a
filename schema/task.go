package schema

import "encoding/json"

// TaskRecord is a task as it is shown: what the record keeps as JSON text is JSON in it.
type TaskRecord struct {
	Task
	Payload json.RawMessage `json:"payload,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Devices json.RawMessage `json:"devices,omitempty"`
}

// Record shows a task.
func (t Task) Record() TaskRecord {
	doc := func(text string) json.RawMessage {
		if text == "" || json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
		quoted, _ := json.Marshal(text) // cut off, or no JSON: a string can't fail
		return quoted
	}
	return TaskRecord{Task: t, Payload: doc(t.Payload), Result: doc(t.Result), Devices: doc(t.Devices)}
}

// TaskKind is what an agent is asked to do.
type TaskKind string

const (
	TaskInventory TaskKind = "inventory"
	TaskDrivers   TaskKind = "drivers"
	TaskRuntime   TaskKind = "runtime"
	TaskBurnIn    TaskKind = "burn-in"
	TaskReset     TaskKind = "reset"
	TaskRun       TaskKind = "run"
)

// TaskState is how far an agent's task has come; see TaskStates.
type TaskState string

const (
	TaskPending   TaskState = "pending"
	TaskClaimed   TaskState = "claimed" // the agent has it
	TaskRunning   TaskState = "running"
	TaskDone      TaskState = "done"
	TaskFailed    TaskState = "failed"
	TaskCancelled TaskState = "cancelled"
)

// Ended reports whether nothing follows s.
func (s TaskState) Ended() bool { return TaskStates.Final(s) }

// Task is one piece of work for a server's agent, kept until its end is known. ID is workflow id + step + attempt:
// asking twice is asking once.
type Task struct {
	ID        string    `gorm:"primaryKey" json:"id"`
	Server    string    `json:"server"`
	Workflow  string    `json:"workflow"`          // who waits for its end: job/<id>, server/<id>
	Cluster   string    `json:"cluster,omitempty"` // whose connector does it; empty = the server's agent
	Kind      TaskKind  `json:"kind"`
	Job       string    `json:"job,omitempty"`
	Attempt   int       `json:"attempt"` // of the job, or of the onboarding
	Epoch     int64     `json:"epoch"`
	Payload   string    `json:"payload"` // JSON; see agentproto
	State     TaskState `json:"state"`
	Text      string    `json:"text"`
	ExitCode  *int      `json:"exit_code"`
	Signal    string    `json:"signal,omitempty"` // that ended its process
	NoneLeft  bool      `json:"none_left"`        // proven: no process of it is left
	Result    string    `json:"result"`           // JSON; see agentproto
	Devices   string    `json:"devices"`          // JSON list of the identities that were really bound; empty = not told
	Seq       int64     `json:"seq"`              // of the last report kept
	StopAt    Instant   `json:"stop_at"`          // asked to stop since
	StopWith  string    `json:"stop_with,omitempty"`
	GraceMS   int64     `gorm:"column:grace_ms" json:"grace_ms"`
	Restarts  int       `json:"restarts,omitempty"` // of a service's part: how often it was begun again before, in its attempt
	NotBefore Instant   `json:"not_before"`         // it is handed out no earlier
	// Of what runs on a cluster: a service's instance, and how far its output was read, in bytes.
	Instance   string  `json:"instance,omitempty"`
	OutputRead int64   `json:"output_read,omitempty"`
	Created    Instant `json:"created"`
	Delivered  Instant `json:"-"` // last time it (or its stop) was handed to the agent
	Claimed    Instant `json:"claimed"`
	Running    Instant `json:"running"`
	Ended      Instant `json:"ended"`
}
