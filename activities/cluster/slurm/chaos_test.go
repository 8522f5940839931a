package slurm_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"gpupool/activities/cluster/clustertest"
	"gpupool/activities/cluster/slurm/slurmtest"
	"gpupool/schema"
)

func TestChaosOnARealSlurm(t *testing.T) {
	c := slurmtest.Start(t, []string{"h1", "h2"}, nil, 8)
	p := clustertest.New(t, "pool", schema.ClusterSlurm, []string{"h1", "h2"}, 8)
	// A slurmd that is killed may take the word of a job's end with it. slurmctld finds that out when the node registers anew, at
	// every twentieth ping, which comes at a third of SlurmdTimeout: 100 s here. What slurmd was about to begin is begun two
	// minutes later, when its first credential has expired.
	p.Settle = 5 * time.Minute
	stop := p.Connect(open(config(c)), quick)
	p.Chaos([]clustertest.Fault{
		{Name: "slurmctld", Break: func() { c.Kill("slurmctld") }, Mend: c.StartController},
		{Name: "slurmrestd", Break: func() { c.Kill("slurmrestd") }, Mend: c.StartREST},
		{Name: "slurmd", Break: func() { c.Kill("slurmd-h1") }, Mend: func() { c.StartNode("h1") }},
		{Name: "connector", Break: func() { stop() }, Mend: func() { stop = p.Connect(open(config(c)), quick) }},
		{Name: "a second connector", Break: func() { stop = p.Connect(open(config(c)), quick) }, Mend: func() {}},
	}, func() {
		// A slurmctld that is killed before it has written a job gives its id out again, and drains the node that knows the
		// first. Only a person lifts what Slurm drained: one that saw why in the pool.
		for name := range p.Servers {
			if strings.Contains(p.Cordon(name, schema.CordonCluster), "Duplicate jobid") {
				_, _ = c.Run("scontrol", "update", "nodename="+name, "state=resume")
			}
		}
	}, func(context.Context) ([]string, error) {
		out, err := c.Run("squeue", "--noheader", "--format=%i")
		return strings.Fields(out), err
	})
}
