package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// tasks is every task the agent was given and may still be asked about.
//
// mu guards all below it, the journal's file included, and is held over no other wait than the journal's. Each live
// task has one goroutine, counted in wg; it changes its record under mu.
type tasks struct {
	cfg     Config
	boot    string
	devices *devices
	wg      sync.WaitGroup
	wake    chan struct{} // something is to be reported

	mu        sync.Mutex
	journal   *journal
	records   map[string]*record
	live      map[string]*live
	held      map[string]string // device -> live run task
	epochs    map[string]int64  // device -> highest epoch it was given out under
	users     map[int]string    // user -> live run task that runs as it
	lastUser  int               // the user that was given out last
	dirty     map[string]bool   // tasks with something to report
	compactTo int64             // journal's size at which it is compacted next
}

// live is a task that has not ended. stop is closed when it shall end.
type live struct {
	stop    chan struct{}
	stopped bool
}

// openTasks reads the journal; call resume before receive.
func openTasks(cfg Config, boot string, devs *devices) (*tasks, error) {
	j, records, epochs, err := openJournal(filepath.Join(cfg.StateDir, "tasks.journal"))
	if err != nil {
		return nil, err
	}
	return &tasks{
		cfg: cfg, boot: boot, devices: devs, wake: make(chan struct{}, 1),
		journal: j, records: records, epochs: epochs,
		live: map[string]*live{}, held: map[string]string{}, users: map[int]string{}, dirty: map[string]bool{}, compactTo: compactAt,
	}, nil
}

// resume takes up what an earlier life of the agent left: jobs that live are adopted, looking tasks are begun again,
// and what can't be known is said so.
func (t *tasks) resume(ctx context.Context) error {
	gone := filepath.Join(t.cfg.StateDir, goneDir)
	if err := os.MkdirAll(gone, 0o700); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(gone, "*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		t.wg.Go(func() { t.remove(dir) }) // an earlier life did not come to its end
	}
	marks, err := t.cfg.Table.Marks(MarkTask, MarkServer+"="+t.cfg.PhoneHome.Server)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	unowned := func(r *record) bool {
		return r.Kind == schema.TaskRun && r.End == nil && r.Boot == t.boot && r.Proc.PID == 0 && len(marks[r.ID]) == 0
	}
	for _, r := range t.records {
		if unowned(r) {
			// Killed between fork and exec, the child doesn't carry its mark yet.
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
			if marks, err = t.cfg.Table.Marks(MarkTask, MarkServer+"="+t.cfg.PhoneHome.Server); err != nil {
				return err
			}
			break
		}
	}
	for _, r := range t.records {
		if t.cfg.Apart != nil && t.cfg.Apart.Users().Contains(r.User) {
			t.lastUser = max(t.lastUser, r.User)
		}
		switch {
		case r.Done:
		case r.End != nil:
			t.touch(r.ID)
		case r.Kind == schema.TaskRun:
			t.hold(r)
			t.adopt(ctx, r, marks[r.ID])
		default:
			t.look(ctx, r)
		}
	}
	return nil
}

// receive takes what a poll answered. An error says that nothing of it was begun and all may be given out again.
func (t *tasks) receive(ctx context.Context, batch []agentproto.Task) error {
	runs := map[string]*runTask{}
	for _, task := range batch {
		if task.Kind == schema.TaskRun && !task.Stop && !t.known(task.ID) {
			runs[task.ID] = t.prepare(ctx, task)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var begun []*record
	for _, task := range batch {
		if task.Stop {
			if r := t.stop(task); r != nil {
				begun = append(begun, r)
			}
			continue
		}
		if r := t.records[task.ID]; r != nil {
			if r.End != nil { // it asks again: it can't have our last word
				t.again(r)
			}
			continue
		}
		r := &record{ID: task.ID, Kind: task.Kind, Epoch: task.Epoch, Payload: task.Payload, Boot: t.boot, Begun: t.now()}
		if err := t.begin(r, runs[task.ID]); err != nil {
			r.End = &end{State: schema.TaskFailed, Text: agentproto.Refused + err.Error(), NoneLeft: true, At: t.now()}
			r.Devices = nil
			t.cfg.Log.WarnContext(ctx, "task refused", "task", r.ID, "why", err)
		}
		t.records[r.ID] = r
		begun = append(begun, r)
	}
	if len(begun) == 0 {
		return nil
	}
	// One wait for the disk covers them all, before the first process is.
	if err := t.journal.add(true, true, begun...); err != nil {
		for _, r := range begun {
			t.release(r)
			delete(t.records, r.ID)
		}
		return fmt.Errorf("nothing was begun, the tasks could not be kept on the disk: %w", err)
	}
	for _, r := range begun {
		switch {
		case r.End != nil:
			t.touch(r.ID)
		case r.Kind == schema.TaskRun:
			t.run(ctx, r, runs[r.ID])
		default:
			t.look(ctx, r)
		}
	}
	return nil
}

func (t *tasks) known(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.records[id] != nil
}

// begin checks a task before it is begun, and holds its devices. The caller holds mu.
func (t *tasks) begin(r *record, run *runTask) error {
	if r.ID == "" {
		return fmt.Errorf("the task has no id")
	}
	if r.Kind != schema.TaskRun {
		if !slices.Contains([]schema.TaskKind{schema.TaskInventory, schema.TaskDrivers, schema.TaskRuntime, schema.TaskBurnIn, schema.TaskReset}, r.Kind) {
			return fmt.Errorf("this agent (version %s) knows no task of kind %q: upgrade it", t.cfg.Version, r.Kind)
		}
		return nil
	}
	if run.err != nil {
		return run.err
	}
	for _, d := range run.devices {
		id := accelerator.Identity(d)
		if high := t.epochs[id]; r.Epoch < high {
			return fmt.Errorf("epoch %d is stale: device %s was given out under epoch %d since", r.Epoch, id, high)
		}
		if other := t.held[id]; other != "" {
			return fmt.Errorf("device %s is held by task %s, which has not ended", id, other)
		}
		r.Devices = append(r.Devices, id)
	}
	if run.play == nil {
		r.Dir = runDir(r.ID)
		if t.cfg.Apart != nil {
			r.Image, r.Brings = run.run.Image, run.run.Image != ""
			if r.User = run.run.User; r.User == 0 {
				user, err := t.freeUser()
				if err != nil {
					return err
				}
				r.User = user
			}
		}
	}
	t.hold(r)
	return nil
}

func (t *tasks) hold(r *record) {
	for _, d := range r.Devices {
		t.held[d] = r.ID
		t.epochs[d] = max(t.epochs[d], r.Epoch)
	}
	if r.User != 0 {
		t.users[r.User] = r.ID
	}
}

func (t *tasks) release(r *record) {
	for _, d := range r.Devices {
		if t.held[d] == r.ID {
			delete(t.held, d)
		}
	}
	if t.users[r.User] == r.ID {
		delete(t.users, r.User)
	}
}

// stop asks a task to end. For one that never came it returns a record that says so: it won't run later either.
// The caller holds mu.
func (t *tasks) stop(task agentproto.Task) *record {
	r := t.records[task.ID]
	if r == nil {
		r = &record{ID: task.ID, Kind: task.Kind, Epoch: task.Epoch, Boot: t.boot, Begun: t.now(), Stop: true}
		r.End = &end{State: schema.TaskCancelled, Text: "stopped before it was begun", NoneLeft: true, At: t.now()}
		t.records[r.ID] = r
		return r
	}
	if r.End != nil {
		t.again(r)
		return nil
	}
	if r.Stop {
		return nil
	}
	r.Stop, r.Signal, r.Grace = true, task.Signal, task.GraceMS
	t.save(r)
	if l := t.live[r.ID]; l != nil && !l.stopped {
		l.stopped = true
		close(l.stop)
	}
	return nil
}

// kill stops tasks whose work nobody waits for.
func (t *tasks) kill(ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if r := t.records[id]; r != nil && r.End == nil && !r.Stop {
			t.cfg.Log.Warn("the platform doesn't know this task: it is stopped", "task", id)
			t.stop(agentproto.Task{ID: id, GraceMS: time.Second.Milliseconds()})
		}
	}
}

// running lists the tasks whose processes live, or may.
func (t *tasks) running() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := make([]string, 0, len(t.live))
	for id := range t.live {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// track makes r live and starts f for it. The caller holds mu.
func (t *tasks) track(r *record, f func(l *live)) {
	l := &live{stop: make(chan struct{})}
	if r.Stop {
		l.stopped = true
		close(l.stop)
	}
	t.live[r.ID] = l
	t.wg.Go(func() { f(l) })
}

// finish sets how r ended, once no more of it can happen.
func (t *tasks) finish(r *record, e end) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.At == 0 {
		e.At = t.now()
	}
	r.End = &e
	delete(t.live, r.ID)
	if e.NoneLeft {
		t.release(r) // else it is held until the server is looked after
	}
	t.save(r)
	t.touch(r.ID)
}

// save writes r's state; a failure is told, and the state is written with the next change. The caller holds mu.
func (t *tasks) save(r *record) {
	if err := t.journal.add(false, false, r); err != nil {
		t.cfg.Log.Error("a task's state could not be kept", "task", r.ID, "err", err)
	}
	if t.journal.size > t.compactTo {
		t.compact()
	}
}

// keepDone is how long an ended task is remembered after its end was accepted, in case an old answer comes late.
const keepDone = 10 * time.Minute

func (t *tasks) compact() {
	old := t.now().Add(-keepDone)
	for id, r := range t.records {
		if r.Done && r.End.At < old {
			delete(t.records, id)
		}
	}
	if err := t.journal.rewrite(t.records, t.epochs); err != nil {
		t.cfg.Log.Error("the tasks' journal could not be compacted", "err", err)
	}
	t.compactTo = max(compactAt, 2*t.journal.size)
}

func (t *tasks) touch(id string) {
	t.dirty[id] = true
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *tasks) now() schema.Instant { return schema.At(t.cfg.Now()) }

func (t *tasks) close() error {
	t.wg.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.journal.close()
}

// lookFor does a task that may be done again: it changes nothing, or resets what no job uses. Each returns a result, words, or why it could not.
func (t *tasks) lookFor(ctx context.Context, id string, kind schema.TaskKind, payload json.RawMessage) (result any, text string, err error) {
	switch kind {
	case schema.TaskInventory:
		return t.inventory(ctx)
	case schema.TaskDrivers:
		return t.setUp(ctx, id, payload, t.drivers)
	case schema.TaskRuntime:
		return t.setUp(ctx, id, payload, t.runtime)
	case schema.TaskBurnIn:
		return t.burnIn(ctx, payload)
	case schema.TaskReset:
		return t.reset(ctx, payload)
	default:
		return nil, "", fmt.Errorf("no such task: %q", kind)
	}
}

// maxTries is how often a looking task is begun: a device whose driver takes the agent down must not do so for ever.
const maxTries = 3

// look runs a looking task, again after a restart. The caller holds mu.
func (t *tasks) look(ctx context.Context, r *record) {
	if r.Tries >= maxTries {
		t.track(r, func(*live) {
			t.finish(r, end{State: schema.TaskFailed, NoneLeft: true,
				Text: fmt.Sprintf("the agent ended %d times while it did this: look at its log and at the vendor's driver", r.Tries)})
		})
		return
	}
	r.Tries++
	t.save(r)
	t.touch(r.ID)
	kind, payload := r.Kind, r.Payload
	t.track(r, func(l *live) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		done := make(chan struct{})
		go func() {
			select {
			case <-l.stop:
				cancel()
			case <-done:
			}
		}()
		result, text, err := t.lookFor(ctx, r.ID, kind, payload)
		close(done)
		e := end{State: schema.TaskDone, Text: text, NoneLeft: true}
		if result != nil {
			b, jerr := json.Marshal(result)
			if jerr != nil && err == nil {
				err = jerr
			}
			e.Result = b
		}
		select {
		case <-l.stop:
			e.State, e.Text = schema.TaskCancelled, "stopped"
			t.finish(r, e)
			return
		default:
		}
		if ctx.Err() != nil {
			return // the agent ends; its next life begins this again
		}
		if err != nil {
			e.State, e.Text = schema.TaskFailed, err.Error()
		}
		t.finish(r, e)
	})
}
