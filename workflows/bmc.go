package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/activities/bmc/watch"
)

// BMCActID is the workflow id of a person's act at a BMC.
func BMCActID(act string) string { return "bmc/" + act }

// BMCActInput starts ActOnBMC.
type BMCActInput struct {
	Act  string `json:"act"`
	Site string `json:"site"`
}

const (
	// takenWithin is how long a person waits for a worker of the site before he is told that none runs.
	takenWithin = 2 * time.Minute
	// actedWithin is how long an act may take: a graceful power off and a captured tree take minutes.
	actedWithin = 30 * time.Minute
)

// ActOnBMC does what a person asked of a BMC, on a worker of its site, and sees to it that the record tells what came of it.
func ActOnBMC(ctx workflow.Context, in BMCActInput) error {
	var site *bmc.Activities
	at := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: SiteQueue(in.Site), ScheduleToStartTimeout: takenWithin, StartToCloseTimeout: actedWithin, ScheduleToCloseTimeout: actedWithin + takenWithin,
		HeartbeatTimeout: 30 * time.Second, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: time.Minute, MaximumAttempts: 5},
	})
	err := workflow.ExecuteActivity(at, site.Operate, in.Act).Get(at, nil)
	if err == nil {
		return nil
	}
	aside, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	var record *bmc.Record
	lctx := local(aside)
	return workflow.ExecuteLocalActivity(lctx, record.BMCActFailed, in.Act, failureOf(err)).Get(lctx, nil)
}

// WatchBMCs hosts the out-of-band watch of a site, under the workflow id watch/<site>.
func WatchBMCs(ctx workflow.Context, site string) error {
	var a *watch.Activities
	err := workflow.ExecuteActivity(hosting(ctx, SiteQueue(site)), a.WatchSite, site).Get(ctx, nil)
	if temporal.IsCanceledError(err) {
		return err
	}
	return workflow.NewContinueAsNewError(ctx, WatchBMCs, site)
}

const (
	rotateEvery    = time.Hour
	rotateTurns    = 48 // before the history begins anew
	rotateAtOnce   = 4
	rotateInOneGo  = 100 // servers in one turn; the others have theirs in the next
	rotationWithin = 10 * time.Minute
)

// KeepCredentials replaces a site's BMC passwords when they have grown old, ends rotations that were cut off, and seals what
// an old key sealed under the present one, under the workflow id credentials/<site>. One BMC that says no holds up no other,
// and has its next turn an hour later.
func KeepCredentials(ctx workflow.Context, site string) error {
	var a *credential.Activities
	at := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: SiteQueue(site), StartToCloseTimeout: rotationWithin, HeartbeatTimeout: rotationWithin,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 10 * time.Second, MaximumInterval: 5 * time.Minute, MaximumAttempts: 3},
	})
	log := workflow.GetLogger(ctx)
	for range rotateTurns {
		if err := workflow.ExecuteActivity(at, a.ResealLogins, site).Get(at, nil); err != nil {
			log.Error("sealing BMC passwords anew", "site", site, "error", err)
		}
		var due []string
		if err := workflow.ExecuteActivity(at, a.LoginsDue, site).Get(at, &due); err != nil {
			log.Error("listing BMC passwords to replace", "site", site, "error", err)
		}
		due = due[:min(len(due), rotateInOneGo)]
		for len(due) > 0 {
			batch := due[:min(len(due), rotateAtOnce)]
			due = due[len(batch):]
			var running []workflow.Future
			for _, server := range batch {
				running = append(running, workflow.ExecuteActivity(at, a.RotateLogin, server))
			}
			for i, f := range running {
				if err := f.Get(at, nil); err != nil {
					log.Error("replacing a BMC password", "server", batch[i], "error", err)
				}
			}
		}
		if err := workflow.Sleep(ctx, rotateEvery); err != nil {
			return err
		}
	}
	return workflow.NewContinueAsNewError(ctx, KeepCredentials, site)
}
