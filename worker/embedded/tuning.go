package embedded

import (
	"time"

	"go.temporal.io/server/common/authorization"
	tcluster "go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"
)

// tuning is the server's dynamic configuration where its defaults, made for clusters, hurt on one
// node with one shard.
func tuning() dynamicconfig.StaticClient {
	return dynamicconfig.StaticClient{
		// Task queues of a shard are read at most this often a second. The default of 20 puts up to
		// 50 ms between any two steps of a workflow.
		dynamicconfig.TransferProcessorMaxPollRPS.Key():   1000,
		dynamicconfig.TimerProcessorMaxPollRPS.Key():      1000,
		dynamicconfig.VisibilityProcessorMaxPollRPS.Key(): 200,

		// With several partitions a task may wait in one that nobody polls just then.
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,

		// A wake-up for a waiting reader of history can get lost; what it then waits is this long.
		dynamicconfig.HistoryLongPollExpirationInterval.Key(): time.Second,

		// Rate limits protect a shared cluster from its tenants. Here the only tenant is this process,
		// and the processor is the limit.
		dynamicconfig.FrontendRPS.Key():                                  50_000,
		dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key():           50_000,
		dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key(): 500,
		dynamicconfig.FrontendPersistenceMaxQPS.Key():                    50_000,
		dynamicconfig.HistoryPersistenceMaxQPS.Key():                     50_000,
		dynamicconfig.MatchingPersistenceMaxQPS.Key():                    50_000,

		// Workflows held in memory; the default is 16 times as many.
		dynamicconfig.HistoryCacheHostLevelMaxSize.Key(): 8192,
	}
}

// newServer builds, but doesn't start, the server.
func newServer(o Options, s *store, p ports, cond *condition) (temporal.Server, error) {
	c := serverConfig(s, p)
	log := logger{to: o.Logger.WithGroup("temporal"), server: cond}
	// Neither has anything to check on loopback; the server insists on both.
	authorizer, err := authorization.GetAuthorizerFromConfig(&c.Global.Authorization)
	if err != nil {
		return nil, err
	}
	claims, err := authorization.GetClaimMapperFromConfig(&c.Global.Authorization, log)
	if err != nil {
		return nil, err
	}
	return temporal.NewServer(
		temporal.WithConfig(c),
		temporal.ForServices(temporal.DefaultServices),
		// Static hosts instead of gossip: no membership ports, no wait to join.
		temporal.WithStaticHosts(map[primitives.ServiceName]static.Hosts{
			primitives.FrontendService: static.SingleLocalHost(address(p.frontend)),
			primitives.HistoryService:  static.SingleLocalHost(address(p.history)),
			primitives.MatchingService: static.SingleLocalHost(address(p.matching)),
			primitives.WorkerService:   static.SingleLocalHost(address(p.worker)),
		}),
		temporal.WithLogger(log),
		temporal.WithAuthorizer(authorizer),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return claims }),
		temporal.WithDynamicConfigClient(tuning()),
	)
}

func serverConfig(s *store, p ports) *config.Config {
	const off = "disabled"
	service := func(port int) config.Service {
		var svc config.Service
		svc.RPC.GRPCPort, svc.RPC.BindOnIP = port, loopback
		return svc
	}
	c := &config.Config{
		Persistence: config.Persistence{
			DefaultStore:    "sqlite",
			VisibilityStore: "sqlite",
			// Fixed for the life of a file. More shards than one only compete for the one connection.
			NumHistoryShards: 1,
			DataStores:       map[string]config.DataStore{"sqlite": {SQL: s.sql}},
		},
		ClusterMetadata: &tcluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        cluster,
			CurrentClusterName:       cluster,
			ClusterInformation: map[string]tcluster.ClusterInformation{
				cluster: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: p.hostPort()},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		Services: map[string]config.Service{
			"frontend": service(p.frontend),
			"history":  service(p.history),
			"matching": service(p.matching),
			"worker":   service(p.worker),
		},
		PublicClient: config.PublicClient{HostPort: p.hostPort()},
	}
	c.Global.Membership.BroadcastAddress = loopback
	c.Global.Membership.MaxJoinDuration = 30 * time.Second
	c.Archival.History.State, c.Archival.Visibility.State = off, off
	c.NamespaceDefaults.Archival.History.State, c.NamespaceDefaults.Archival.Visibility.State = off, off
	return c
}
