package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"gpupool/cmd/gpupool/bench/pxebench"
)

// ownNetwork says that this process is the one in a network namespace of its own.
const ownNetwork = "GPUPOOL_BENCH_NETWORK"

// netboot starts this program again in a network namespace, where it can have port 67 and every address.
func netboot(ctx context.Context, say func(string)) ([]Figure, error) {
	if spec := os.Getenv(pxebench.ServiceEnv); spec != "" {
		return nil, pxebench.Serve(ctx, spec)
	}
	if os.Getenv(ownNetwork) != "" {
		database, stop, err := ownPostgres(ctx)
		if err != nil {
			say("leases on PostgreSQL are not measured: " + err.Error())
		} else {
			defer stop()
		}
		results, err := pxebench.Run(ctx, say, database)
		return beside("pxe", results), err
	}
	if missing := pxebench.Missing(); len(missing) > 0 {
		say("not measured: its peers are missing (hint: deploy/packages.sh netns, or apt-get install " + strings.Join(missing, " ") + ")")
		return nil, nil
	}
	if os.Geteuid() != 0 {
		say("not measured: it needs root, for a network namespace")
		return nil, nil
	}
	file, err := os.CreateTemp("", "gpupool-bench-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name())
	defer file.Close()
	c := exec.CommandContext(ctx, "unshare", "--net", "--", os.Args[0], "bench", "--only", "pxe", "--json", file.Name())
	c.Env = append(os.Environ(), ownNetwork+"=1")
	c.Stderr = os.Stderr
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("in a network namespace: %w", err)
	}
	var out []Figure
	return out, json.NewDecoder(file).Decode(&out)
}

// beside makes figures of results: their goal is to be as good as the best of their peers.
func beside(group string, results []pxebench.Result) []Figure {
	var out []Figure
	for _, r := range results {
		f := Figure{Group: group, Name: r.Name, Value: r.Value, Unit: r.Unit}
		var best float64
		for name, v := range r.Peers {
			if v > best {
				best, f.Peer = v, name
			}
		}
		if best > 0 {
			ratio, goal := r.Value/best, 1.0
			holds := ratio >= goal
			f.PeerValue, f.Ratio, f.Goal, f.Holds = &best, &ratio, &goal, &holds
		} else if r.AtMost > 0 {
			holds := r.Value <= r.AtMost
			f.Goal, f.Holds = &r.AtMost, &holds
		}
		out = append(out, f)
	}
	return out
}
