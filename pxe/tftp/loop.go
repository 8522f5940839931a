package tftp

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loop drives transfers, many in one thread: TFTP is one small packet there and one back, so with a goroutine for each
// transfer most of the work is to wake it. Here a packet costs a read and a write, and where many wait they are found by
// one call.
//
// run owns all of a sender from drive to the outcome, but for a piece that is being read. What else is said to the loop goes
// through orders.
type loop struct {
	epoll, wake int
	senders     map[int32]*sender // by descriptor; run's
	next        time.Time         // not later than the first deadline; run's

	mu     sync.Mutex
	orders []order
}

// order is to begin with a transfer, to go on with what was read for it, to stop it, or with none to end.
type order struct {
	s    *sender
	verb verb
	read piece
	err  error // of reading it
}

type verb int

const (
	begin verb = iota
	feed
	stop
)

func newLoop() (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), unix.Close(epoll))
	}
	return &loop{epoll: epoll, wake: wake, senders: map[int32]*sender{}}, nil
}

// drive takes a transfer to its end, reads for it meanwhile, and returns how it ended: stopped where ctx did.
func (l *loop) drive(ctx context.Context, s *sender) outcome {
	l.order(order{s: s, verb: begin})
	for {
		select {
		case p := <-s.wants:
			l.order(order{s: s, verb: feed, read: p, err: s.read(p)})
		case o := <-s.ended:
			return o
		case <-ctx.Done():
			l.order(order{s: s, verb: stop})
			return <-s.ended
		}
	}
}

// close ends run; no transfer may be left.
func (l *loop) close() { l.order(order{}) }

func (l *loop) order(o order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders = append(l.orders, o)
	_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 1}) // more than 0, in either byte order
}

// yieldEvery is how often a loop lets others have its processor. After 10 ms the runtime would take it, and its monitor, which
// finds out whom to take it from, then wakes thousands of times a second: a fifth of the speed of a single transfer.
const yieldEvery = 8 * time.Millisecond

// run drives until close.
func (l *loop) run() {
	defer func() {
		_ = unix.Close(l.epoll)
		_ = unix.Close(l.wake)
	}()
	events := make([]unix.EpollEvent, 64)
	in := make([]byte, 516)
	var yielded time.Time
	for {
		n, err := unix.EpollWait(l.epoll, events, l.patience())
		if err != nil {
			continue // EINTR; there is no other for what newLoop made
		}
		now := time.Now()
		if now.Sub(yielded) > yieldEvery {
			runtime.Gosched()
			yielded = now
		}
		for _, e := range events[:n] {
			if int(e.Fd) == l.wake {
				if !l.obey(now) {
					return
				}
				continue
			}
			s := l.senders[e.Fd]
			if s == nil {
				continue // it ended by an order of the same turn
			}
			var o outcome
			blocked := s.blocked()
			if e.Events&unix.EPOLLOUT != 0 {
				o = s.write()
			}
			if o.result == "" && e.Events&^unix.EPOLLOUT != 0 {
				o = s.receive(now, in)
			}
			l.settle(s, o, blocked)
		}
		if len(l.senders) > 0 && !now.Before(l.next) {
			l.expire(now)
		}
	}
}

// patience is how long to wait for a packet, in milliseconds; -1 = until one comes.
func (l *loop) patience() int {
	if len(l.senders) == 0 {
		return -1
	}
	return int(max(0, (time.Until(l.next)+time.Millisecond-1)/time.Millisecond))
}

// obey does what was ordered, and reports whether to go on.
func (l *loop) obey(now time.Time) bool {
	var count [8]byte
	_, _ = unix.Read(l.wake, count[:]) // before the orders are taken: what comes later wakes again
	l.mu.Lock()
	orders := l.orders
	l.orders = nil
	l.mu.Unlock()
	for _, o := range orders {
		s := o.s
		switch {
		case s == nil:
			return false
		case o.verb == begin:
			if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)}); err != nil {
				s.ended <- outcome{Failed, err.Error()}
				continue
			}
			if len(l.senders) == 0 {
				l.next = now.Add(time.Hour)
			}
			l.senders[int32(s.fd)] = s
			l.settle(s, s.begin(now), false)
		case l.senders[int32(s.fd)] != s: // it has ended
		case o.verb == feed:
			blocked := s.blocked()
			l.settle(s, s.fed(o.read, o.err), blocked)
		case o.verb == stop:
			l.settle(s, outcome{result: stopped}, false)
		}
	}
	return true
}

// settle tells of a transfer's end, or sees to it that what it waits for is noticed. blocked is what it was before.
func (l *loop) settle(s *sender, o outcome, blocked bool) {
	if o.result != "" {
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, s.fd, nil)
		delete(l.senders, int32(s.fd))
		s.ended <- o
		return
	}
	if s.deadline.Before(l.next) {
		l.next = s.deadline
	}
	if now := s.blocked(); now != blocked {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.fd)}
		if now {
			e.Events |= unix.EPOLLOUT
		}
		_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, s.fd, &e)
	}
}

// expire turns to those whose answer is late. All are looked at, but only as often as the first could be due.
func (l *loop) expire(now time.Time) {
	l.next = now.Add(time.Hour)
	for _, s := range l.senders {
		var o outcome
		blocked := s.blocked()
		if !now.Before(s.deadline) {
			o = s.expired(now)
		}
		l.settle(s, o, blocked)
	}
}
