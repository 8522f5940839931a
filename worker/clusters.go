package worker

import (
	"context"
	"fmt"

	"go.temporal.io/sdk/interceptor"
	sdkworker "go.temporal.io/sdk/worker"

	"gpupool/activities/cluster"
	"gpupool/activities/cluster/kube"
	"gpupool/activities/cluster/slurm"
	"gpupool/schema"
	"gpupool/worker/config"
	"gpupool/workflows"
)

// clusters offers to serve the configured clusters. One of the processes that offer a cluster serves it, the others stand
// by.
func (p *Process) clusters(ctx context.Context) error {
	for _, c := range p.Config.Clusters {
		w := sdkworker.New(p.Client, workflows.ClusterQueue(c.Name), sdkworker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1, WorkerStopTimeout: stopWithin, Interceptors: []interceptor.WorkerInterceptor{&stopped{}}})
		log := p.log.With("part", "cluster")
		s := slurm.Config{Owner: c.Owner, URL: c.URL, Version: c.APIVersion, TokenFile: c.TokenFile, KeyFile: c.JWTKeyFile, User: c.User, BinDir: c.BinDir, Conf: c.Conf,
			Partition: c.Partition, Account: c.Account, LogDir: c.LogDir, ContainerFlag: c.ContainerFlag, Log: log}
		var can schema.Ability
		if c.Kind == config.Slurm {
			can = s.Can()
		}
		w.RegisterActivity(&cluster.Activities{Store: p.Store, Kind: schema.ClusterKind(c.Kind), Can: can, Holder: identity(), Log: log,
			Open: func(context.Context) (cluster.Backend, error) {
				if c.Kind == config.Slurm {
					return slurm.Open(s)
				}
				return kube.Open(kube.Config{Owner: c.Owner, Kubeconfig: c.Kubeconfig, Context: c.Context, Namespace: c.Namespace, Image: c.Image})
			}})
		if err := w.Start(); err != nil {
			return fmt.Errorf("starting the connector of cluster %s: %w", c.Name, err)
		}
		p.onStop(w.Stop)
		if err := p.host(ctx, "cluster/"+c.Name, workflows.Cluster, c.Name); err != nil {
			return err
		}
	}
	return nil
}
