package kube_test

import (
	"context"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpupool/activities/cluster/clustertest"
	"gpupool/activities/cluster/kube/kubetest"
	"gpupool/schema"
)

func TestChaosOnARealKubernetes(t *testing.T) {
	c := kubetest.Start(t)
	nodes := []string{"k1", "k2"}
	for _, n := range nodes {
		c.Node(n, devices(n, 8))
	}
	p := clustertest.New(t, "prod", schema.ClusterKubernetes, nodes, 8)
	stop := p.Connect(open(c), quick)
	p.Chaos([]clustertest.Fault{
		{Name: "apiserver", Break: func() { c.Kill("apiserver") }, Mend: c.StartAPI},
		{Name: "scheduler", Break: func() { c.Kill("scheduler") }, Mend: func() { c.StartScheduler(500) }},
		{Name: "connector", Break: func() { stop() }, Mend: func() { stop = p.Connect(open(c), quick) }},
		{Name: "a second connector", Break: func() { stop = p.Connect(open(c), quick) }, Mend: func() {}},
	}, func() {}, func(ctx context.Context) ([]string, error) {
		var out []string
		jobs, err := c.API.BatchV1().Jobs("gpupool").List(ctx, meta.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, j := range jobs.Items {
			out = append(out, j.Name)
		}
		pods, err := c.API.CoreV1().Pods("gpupool").List(ctx, meta.ListOptions{})
		for _, p := range pods.Items {
			out = append(out, p.Name)
		}
		return out, err
	})
}
