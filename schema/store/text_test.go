package store_test

import (
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

func TestOutputMayBeAnything(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	j := b.submit(1)
	b.commit(b.start(j, b.place(0, 0)))
	b.must(b.DispatchAttempt(t.Context(), j.ID, 1))
	b.must(b.part(j.ID, 1, 0, agentproto.TaskReport{Seq: 1, State: schema.TaskRunning, Output: "a\x00b\xff\n", Text: "\x00"})())
	out, err := b.JobOutput(t.Context(), j.ID, 1, 0, 0)
	b.must(err)
	if len(out) != 1 || out[0].Output != "a\ufffdb\ufffd\n" {
		t.Fatalf("kept as %+v", out)
	}
	// What people and machines say, too, and what is looked for.
	b.must(b.ReportFault(t.Context(), b.servers[0].ID, schema.Fault{Source: "test", Kind: "log", Severity: schema.SeverityInfo, Text: "x\x00", Dedupe: "d"}))
	_, err = b.Cordon(t.Context(), b.servers[0].ID, "", schema.CordonOperator, "test", "\x00\xff")
	b.must(err)
	if _, err := b.Server(t.Context(), "r1\x00"); !schema.Is(err, schema.CodeNotFound) {
		t.Fatalf("got %v, want not found", err)
	}
	if jobs, err := b.QueuedJobs(t.Context(), "eu", []string{"x\x00", "\xff"}); err != nil || len(jobs) > 0 {
		t.Fatalf("got %v, %v, want no job", jobs, err)
	}
}
