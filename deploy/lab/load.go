package lab

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpupool/worker/agent"
)

// LoadEnv is how a job of the lab says how hard it works: 0 to 1. A job that doesn't say works at 0.92.
const LoadEnv = "LAB_UTILIZATION"

// loads knows which devices are in use, by what the processes of this machine were shown. One look at /proc serves all
// servers for a while.
type loads struct {
	now func() time.Time

	mu sync.Mutex
	at time.Time
	by map[string]map[string]float64 // server -> device's UUID or index -> load
}

const loadFresh = 2 * time.Second

func newLoads(now func() time.Time) *loads { return &loads{now: now} }

// of is one server's part.
func (l *loads) of(server string) func(uuid string, index int) float64 {
	return func(uuid string, index int) float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		if now := l.now(); now.Sub(l.at) > loadFresh || now.Before(l.at) {
			l.by, l.at = scanLoads("/proc"), now
		}
		d := l.by[server]
		return max(d[uuid], d[strconv.Itoa(index)])
	}
}

var shown = []string{"CUDA_VISIBLE_DEVICES=", "ROCR_VISIBLE_DEVICES="}

func scanLoads(root string) map[string]map[string]float64 {
	by := map[string]map[string]float64{}
	dirs, err := os.ReadDir(root)
	if err != nil {
		return by
	}
	for _, d := range dirs {
		if n := d.Name(); n[0] < '0' || n[0] > '9' {
			continue
		}
		env, err := os.ReadFile(filepath.Join(root, d.Name(), "environ"))
		if err != nil || !strings.Contains(string(env), agent.MarkServer+"=") {
			continue
		}
		server, load := "", 0.92
		var devices []string
		for v := range strings.SplitSeq(string(env), "\x00") {
			if s, ok := strings.CutPrefix(v, agent.MarkServer+"="); ok {
				server = s
			}
			if s, ok := strings.CutPrefix(v, LoadEnv+"="); ok {
				if f, err := strconv.ParseFloat(s, 64); err == nil && f >= 0 && f <= 1 {
					load = f
				}
			}
			for _, p := range shown {
				if s, ok := strings.CutPrefix(v, p); ok && s != "" {
					devices = append(devices, strings.Split(s, ",")...)
				}
			}
		}
		if by[server] == nil {
			by[server] = map[string]float64{}
		}
		for _, id := range devices {
			by[server][id] = max(by[server][id], load)
		}
	}
	return by
}
