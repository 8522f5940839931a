package deliver

import (
	"context"
	"sync"
)

// task is one thing to do for an event.
type task struct {
	Delivery
	judge string // instead of a delivery: the fault to be judged
	open  *open
}

// open is an event that is not all done.
type open struct {
	seq  int64
	done bool
}

// queue does what was added: the tasks of one lane one after the other, lanes beside each other, parallel at most. It knows
// up to where everything is done.
//
// mu guards all below it. Each lane that has tasks has one goroutine, counted in wg; it ends when the lane is empty or
// its context has ended. add and read are called by one goroutine.
type queue struct {
	do    func(ctx context.Context, lane string, t task) error // an error means that the context has ended
	wg    sync.WaitGroup
	slots chan struct{} // one for each lane that is at work
	room  chan struct{} // one for each open task

	mu    sync.Mutex
	lanes map[string][]task // a lane that is served is there, empty or not
	opens []*open           // in the order of seq, from the first that is not done
	upTo  int64             // read so far
}

func newQueue(at int64, do func(ctx context.Context, lane string, t task) error) *queue {
	return &queue{do: do, slots: make(chan struct{}, parallel), room: make(chan struct{}, ahead), lanes: map[string][]task{}, upTo: at}
}

// add gives a task to its lane. Where too much is open it waits.
func (q *queue) add(ctx context.Context, lane string, seq int64, t task) error {
	select {
	case q.room <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.open = &open{seq: seq}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.opens = append(q.opens, t.open)
	tasks, served := q.lanes[lane]
	q.lanes[lane] = append(tasks, t)
	if !served {
		q.wg.Go(func() { q.serve(ctx, lane) })
	}
	return nil
}

// serve does a lane's tasks until there are none.
func (q *queue) serve(ctx context.Context, lane string) {
	select {
	case q.slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-q.slots }()
	for {
		t, ok := q.next(lane)
		if !ok {
			return
		}
		if q.do(ctx, lane, t) != nil {
			return // what is open stays before the cursor
		}
		q.finish(t.open)
	}
}

// next takes the lane's next task; it ends the lane where there is none.
func (q *queue) next(lane string) (task, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	tasks := q.lanes[lane]
	if len(tasks) == 0 {
		delete(q.lanes, lane)
		return task{}, false
	}
	q.lanes[lane] = tasks[1:]
	return tasks[0], true
}

func (q *queue) finish(o *open) {
	q.mu.Lock()
	defer q.mu.Unlock()
	o.done = true
	<-q.room
	for len(q.opens) > 0 && q.opens[0].done {
		q.opens = q.opens[1:]
	}
}

// read says that every event up to seq has been added.
func (q *queue) read(seq int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.upTo = seq
}

// done is the number up to which every event is done.
func (q *queue) done() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.opens) > 0 {
		return q.opens[0].seq - 1
	}
	return q.upTo
}

// wait ends with the last lane's goroutine.
func (q *queue) wait() { q.wg.Wait() }
