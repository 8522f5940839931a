package console

import (
	"strings"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/schema"
)

// repairsPage is the technician's list: what waits for them first.
func repairsPage(v *visit) {
	l, err := call.Do[contract.RepairList](v.api.ListRepairs(v.r.Context(), &contract.ListRepairsParams{Open: opt(true)}))
	if err != nil {
		v.fail(err)
		return
	}
	names, err := v.servers()
	if err != nil {
		v.fail(err)
		return
	}
	var waiting, others []schema.Repair
	for _, r := range l.Items {
		if r.State == schema.RepairWaiting {
			waiting = append(waiting, r)
		} else {
			others = append(others, r)
		}
	}
	v.show(page{title: "Repairs", path: "/ui/repairs"}, repairsView(v, waiting, others, names), nil)
}

// repairDetail is a repair with the hardware it is about.
type repairDetail struct {
	schema.Repair
	Machine contract.Server
	Device  schema.Accelerator // zero where it is about the server
	Faults  []schema.Fault
}

// expected is the serial that should come out, where it is known.
func (d repairDetail) expected() string {
	if d.OldSerial != "" {
		return d.OldSerial
	}
	return d.Device.Serial
}

func (v *visit) repair(id string) (d repairDetail, err error) {
	ctx := v.r.Context()
	if d.Repair, err = call.Do[schema.Repair](v.api.GetRepair(ctx, id, &contract.GetRepairParams{})); err != nil {
		return d, err
	}
	if d.Machine, err = call.Do[contract.Server](v.api.GetServer(ctx, d.Server, &contract.GetServerParams{})); err != nil {
		return d, err
	}
	acc, err := call.Do[contract.AcceleratorList](v.api.ListAccelerators(ctx, &contract.ListAcceleratorsParams{Server: &d.Server, Limit: opt(1000)}))
	if err != nil {
		return d, err
	}
	for _, a := range acc.Items {
		if a.ID == d.Accelerator {
			d.Device = a
		}
	}
	faults, err := call.Do[contract.FaultList](v.api.ListFaults(ctx, &contract.ListFaultsParams{Server: &d.Server}))
	if err != nil {
		return d, err
	}
	for _, f := range faults.Items {
		if f.Repair == d.ID {
			d.Faults = append(d.Faults, f)
		}
	}
	return d, nil
}

func repairPage(v *visit) { v.showRepair(v.r.PathValue("repair"), nil, contract.RepairDone{}) }

func (v *visit) showRepair(id string, n *notice, typed contract.RepairDone) {
	d, err := v.repair(id)
	if err != nil {
		v.fail(err)
		return
	}
	if typed.OldSerial == "" {
		typed.OldSerial = d.expected()
	}
	v.show(page{title: "Repair of " + d.Machine.Name, path: "/ui/repairs", at: "/ui/repairs/" + d.ID, shape: string(d.State), notice: n}, repairView(v, d), repairForm(v, d, typed))
}

// repairDo takes the technician's word; what was typed is kept on the page when it is refused.
func repairDo(v *visit) {
	id := v.r.PathValue("repair")
	in := contract.RepairDone{
		OldSerial: strings.TrimSpace(v.r.PostFormValue("old_serial")),
		NewSerial: strings.TrimSpace(v.r.PostFormValue("new_serial")),
		Note:      strings.TrimSpace(v.r.PostFormValue("note")),
	}
	if _, err := call.Do[schema.Repair](v.api.FinishRepair(v.r.Context(), id, in)); err != nil {
		if c := schema.CodeOf(err); c == schema.CodeUnauthenticated || c == schema.CodeNotFound {
			v.fail(err)
			return
		}
		v.showRepair(id, problem(err), in)
		return
	}
	v.back("/ui/repairs/"+id, "done")
}
