package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// RepairReturn lets a repaired server back into the pool. The proof is checked here, at the moment of the act: a
// burn-in task queued after the technician's word passed on every device ordered, and no fault has come since.
func (s *Store) RepairReturn(ctx context.Context, repair, burnIn string) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil || r.State == schema.RepairReturned {
			return err
		}
		if r.State != schema.RepairVerifying {
			return schema.Conflict(fmt.Sprintf("repair %s is %s", r.ID, r.State), "it returns from verifying only")
		}
		var t schema.Task
		if err := one(tx.lock(&t, "id = ? AND server = ? AND kind = ?", burnIn, v.ID, schema.TaskBurnIn), "burn-in", burnIn); err != nil {
			return err
		}
		var proof agentproto.BurnInResult
		if err := json.Unmarshal([]byte(t.Result), &proof); err != nil || t.State != schema.TaskDone || proof.Outcome != "passed" || t.Created < r.DoneAt {
			return schema.Unsafe(fmt.Sprintf("burn-in %s does not prove repair %s", burnIn, r.ID), "a burn-in that began after the repair must pass")
		}
		if len(proof.Devices) < v.Accelerators {
			return schema.Unsafe(fmt.Sprintf("burn-in %s covered %d of %d devices", burnIn, len(proof.Devices), v.Accelerators), "all must be there")
		}
		var since schema.Fault
		err = tx.lock(&since, "server = ? AND epoch = ? AND severity <> ? AND cleared_at = 0", v.ID, v.Epoch, schema.SeverityInfo)
		if err == nil {
			return schema.Unsafe("a fault came since the repair: "+since.Text, "the server goes back to the technician")
		} else if !isNoRows(err) {
			return err
		}
		if err := tx.swapSerial(&r, v); err != nil {
			return err
		}
		if err := tx.markProven(v, "burn-in passed after repair"); err != nil {
			return err
		}
		if err := tx.install(v); err != nil {
			return err
		}
		if _, err := tx.exec("UPDATE faults SET cleared_at = ? WHERE server = ? AND cleared_at = 0 AND epoch < ?", tx.now, v.ID, v.Epoch); err != nil {
			return err
		}
		var lifted []schema.Cordon
		if err := tx.lockAll(&lifted, "server = ? AND owner IN (?, ?) AND lifted_at = 0", v.ID, schema.CordonFault, schema.CordonRelease); err != nil {
			return err
		}
		for _, c := range lifted {
			if _, err := tx.uncordon(v, c.Accelerator, c.Owner, "repair"); err != nil {
				return err
			}
		}
		r.ClosedAt, r.WaitingWhy = tx.now, ""
		if r.ProbationUntil, err = tx.probation(r); err != nil {
			return err
		}
		if err := tx.setRepair(&r, schema.RepairReturned, "repair", "proven by burn-in"); err != nil {
			return err
		}
		return tx.setPhase(&v, schema.PhaseAvailable, "repair", "repaired and proven")
	})
}

// probations are how long a server counts as on probation after its first, second and further return within 30 days.
var probations = []time.Duration{time.Hour, 24 * time.Hour, 7 * 24 * time.Hour}

func (tx *Tx) probation(r schema.Repair) (schema.Instant, error) {
	if r.Part == schema.PartNone {
		return 0, nil // it was only proven
	}
	var n int64
	err := tx.db.Raw("SELECT count(*) FROM repairs WHERE server = ? AND state = ? AND closed_at >= ? AND part <> ?", r.Server, schema.RepairReturned, tx.now.Add(-30*24*time.Hour), schema.PartNone).Scan(&n).Error
	return tx.now.Add(probations[min(n, int64(len(probations)-1))]), err
}

// swapSerial takes the replaced part out of the inventory: the new one must have been seen.
func (tx *Tx) swapSerial(r *schema.Repair, v schema.Server) error {
	if r.NewSerial == "" {
		told, err := tx.untoldSwap(r, v)
		if err != nil || !told {
			return err
		}
	}
	var fresh schema.Accelerator
	if err := tx.lock(&fresh, "server = ? AND serial = ? AND removed_at = 0", v.ID, r.NewSerial); err != nil {
		if isNoRows(err) {
			return schema.Unsafe(fmt.Sprintf("the new serial %s is not seen in server %s", r.NewSerial, v.Name), "is the part seated? is the serial right?")
		}
		return err
	}
	if r.Accelerator == "" {
		return nil
	}
	var old schema.Accelerator
	if err := tx.lock(&old, "id = ?", r.Accelerator); err != nil {
		return err
	}
	if old.ID == fresh.ID || old.RemovedAt != 0 {
		return nil
	}
	if old.Health != schema.HealthAbsent {
		return schema.Unsafe(fmt.Sprintf("the failed part %s is still seen in server %s", old.Serial, v.Name), "was the right part replaced?")
	}
	return tx.removeAccelerator(&old, "replaced by "+r.NewSerial+" in "+r.ID)
}

// untoldSwap finds the new part by the failed one's slot, where the technician named no serial and the failed one is gone.
func (tx *Tx) untoldSwap(r *schema.Repair, v schema.Server) (bool, error) {
	if r.Accelerator == "" {
		return false, nil
	}
	var old, fresh schema.Accelerator
	if err := tx.lock(&old, "id = ?", r.Accelerator); err != nil || old.Health != schema.HealthAbsent || old.Slot == "" {
		return false, err
	}
	err := tx.lock(&fresh, "server = ? AND slot = ? AND id <> ? AND removed_at = 0 AND health <> ? AND serial <> ''", v.ID, old.Slot, old.ID, schema.HealthAbsent)
	if isNoRows(err) {
		return false, nil
	}
	r.NewSerial = fresh.Serial
	return err == nil, err
}
