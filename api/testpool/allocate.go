package testpool

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// allocate starts what fits, first come first served, says CAPACITY of what doesn't, and runs what was started. It
// reads everything anew at each change: enough for a test's handful of jobs.
func (p *Pool) allocate(ctx context.Context) {
	w, asked := p.Store.Watch(store.TopicAll), p.Store.Watch(store.TopicDryRuns(Region))
	defer w.Close()
	defer asked.Close()
	told := map[string]int{} // job -> the free accelerators its reason was last told with
	for cycle := int64(1); ; cycle++ {
		if err := p.cycle(ctx, cycle, told); err != nil && ctx.Err() == nil {
			panic(fmt.Sprintf("testpool: allocating: %v", err)) // a test's helper that can't go on is a broken test
		}
		select {
		case <-w.C:
		case <-asked.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Pool) cycle(ctx context.Context, number int64, told map[string]int) error {
	ids, err := p.Store.RegionServers(ctx, Region)
	if err != nil {
		return err
	}
	nodes, err := p.Store.Nodes(ctx, ids)
	if err != nil {
		return err
	}
	live, err := p.Store.LiveAttempts(ctx, Region)
	if err != nil {
		return err
	}
	held := map[string]bool{}
	for _, l := range live {
		for _, place := range l.Places {
			for _, a := range place.Accelerators {
				held[a] = true
			}
		}
		if err := p.run(ctx, l); err != nil {
			return err
		}
	}
	if err := p.dryRuns(ctx, number, nodes, held); err != nil {
		return err
	}
	jobs, err := p.Store.QueuedAfter(ctx, Region, 0, 1000)
	if err != nil || len(jobs) == 0 {
		return err
	}
	c := store.Cycle{Number: number, Reasons: map[string]schema.ReasonDoc{}}
	for _, j := range jobs {
		places, free := fit(j, nodes, held)
		switch {
		case j.Held:
			if told[j.ID] != -1 {
				told[j.ID] = -1
				c.Reasons[j.ID] = p.reason(j, number, schema.ReasonHeld, "ask an admin", map[string]any{"by": j.HeldBy, "why": "held"}, "the hold is released")
			}
		case len(places) == j.Nodes:
			c.Starts = append(c.Starts, store.Start{Job: j.ID, Attempt: j.Attempt + 1, Places: places})
			for _, place := range places {
				for _, a := range place.Accelerators {
					held[a] = true
				}
			}
		case told[j.ID] != free+1:
			told[j.ID] = free + 1
			need := j.Accelerators()
			c.Reasons[j.ID] = p.reason(j, number, schema.ReasonCapacity, "wait", map[string]any{"free": free, "needed": need}, fmt.Sprintf("%d more accelerators of %s are free", need-free, j.Model))
		}
	}
	if len(c.Starts)+len(c.Reasons) == 0 {
		return nil
	}
	_, err = p.Store.CommitCycle(ctx, Region, p.epoch, c)
	return err
}

// dryRuns says of each job that is asked about whether it would fit now.
func (p *Pool) dryRuns(ctx context.Context, cycle int64, nodes []store.Node, held map[string]bool) error {
	asked, err := p.Store.DryRuns(ctx, Region)
	if err != nil {
		return err
	}
	for _, q := range asked {
		places, free := fit(q.Job, nodes, held)
		a := store.DryRunAnswer{At: p.Store.Now(), Cycle: cycle, Starts: len(places) == q.Job.Nodes}
		if a.Starts {
			a.Places = places
		} else {
			need := q.Job.Accelerators()
			why := p.reason(q.Job, cycle, schema.ReasonCapacity, "wait", map[string]any{"free": free, "needed": need}, fmt.Sprintf("%d more accelerators of %s are free", need-free, q.Job.Model))
			a.Reason = &why
		}
		if err := p.Store.AnswerDryRun(ctx, q.ID, a); err != nil {
			return err
		}
	}
	return nil
}

func (p *Pool) reason(j schema.Job, cycle int64, code schema.ReasonCode, class string, detail map[string]any, clears string) schema.ReasonDoc {
	d, _ := json.Marshal(detail) // strings and numbers
	now := p.Store.Now()
	return schema.ReasonDoc{Code: code, Class: class, Since: now, EvaluatedAt: now, Cycle: cycle, Detail: d, ClearsWhen: clears, Position: json.RawMessage(`{"project":0,"spec":0,"ahead_gpus":0}`)}
}

// fit finds whole nodes for a job, and how many accelerators of its model are free at all.
func fit(j schema.Job, nodes []store.Node, held map[string]bool) (places []store.Place, free int) {
	for _, n := range nodes {
		if n.Server.Phase != schema.PhaseAvailable || len(n.Cordons) > 0 {
			continue
		}
		place := store.Place{Server: n.Server.ID}
		for _, a := range n.Accelerators {
			if a.Model != j.Model || a.Health != schema.HealthHealthy || held[a.ID] {
				continue
			}
			free++
			if len(place.Accelerators) < j.PerNode {
				place.Accelerators = append(place.Accelerators, a.ID)
			}
		}
		if len(place.Accelerators) == j.PerNode && len(places) < j.Nodes {
			places = append(places, place)
		}
	}
	return places, free
}

// run is the agents' part: it starts a job's tasks, ends those that are to end, and settles the attempt. Commands it knows:
// `echo WORDS` prints and ends with 0, `exit N WORDS` prints and ends with N, anything else runs until it is stopped.
func (p *Pool) run(ctx context.Context, l store.LiveAttempt) error {
	if err := p.Store.DispatchAttempt(ctx, l.Job.ID, l.Attempt.Attempt); err != nil {
		return err
	}
	tasks, err := p.Store.JobTasks(ctx, l.Job.ID, l.Attempt.Attempt)
	if err != nil {
		return err
	}
	job, err := p.Store.Job(ctx, l.Job.ID) // with its command, which decides nothing about its place
	if err != nil {
		return err
	}
	open := 0
	for rank, t := range tasks {
		if t.State.Ended() {
			continue
		}
		if t.State == schema.TaskPending {
			if _, err := p.Store.ClaimTasks(ctx, t.Server); err != nil {
				return err
			}
			if err := p.report(ctx, t, agentproto.TaskReport{State: schema.TaskRunning, Output: fmt.Sprintf("node %d of %d\n", rank, len(tasks))}); err != nil {
				return err
			}
			t.Seq++
		}
		if done, ok := end(job, t); ok {
			err = p.report(ctx, t, done)
		} else {
			open++
		}
		if err != nil {
			return err
		}
	}
	if open > 0 || len(tasks) == 0 && l.Attempt.StopWhy == "" {
		return nil
	}
	_, err = p.Store.SettleAttempt(ctx, l.Job.ID, l.Attempt.Attempt, nil)
	return err
}

func (p *Pool) report(ctx context.Context, t schema.Task, r agentproto.TaskReport) error {
	r.Task, r.Seq, r.At = t.ID, t.Seq+1, p.Store.Now()
	_, err := p.Store.Report(ctx, t.Server, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
	return err
}

// end is a task's last report, where it is to end now.
func end(j schema.Job, t schema.Task) (agentproto.TaskReport, bool) {
	var argv []string
	if json.Unmarshal([]byte(j.Command), &argv) != nil || len(argv) == 0 {
		return agentproto.TaskReport{}, false
	}
	code := 0
	switch {
	case t.StopAt != 0:
		code = 143
		return agentproto.TaskReport{State: schema.TaskCancelled, ExitCode: &code, Signal: "terminated", NoneLeft: true}, true
	case argv[0] == "echo":
		return agentproto.TaskReport{State: schema.TaskDone, ExitCode: &code, Output: strings.Join(argv[1:], " ") + "\n", NoneLeft: true}, true
	case argv[0] == "exit" && len(argv) > 1:
		code, _ = strconv.Atoi(argv[1])
		return agentproto.TaskReport{State: schema.TaskFailed, ExitCode: &code, Output: strings.Join(argv[2:], " ") + "\n", NoneLeft: true}, true
	}
	return agentproto.TaskReport{}, false
}
