package worker

import (
	"reflect"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/worker/config"
)

// TestThePolicyOfTheQueueReachesTheEngine: every setting of the queue changes what the engine is told, and none set is its default.
func TestThePolicyOfTheQueueReachesTheEngine(t *testing.T) {
	t.Parallel()
	if got := policy(config.Queue{}); !reflect.DeepEqual(got, engine.Config{}) {
		t.Errorf("with nothing set the engine is told %+v", got)
	}
	set := config.Queue{Order: "fifo", Placement: "spread", HalfLife: 24 * time.Hour, EntryPenalty: -1, MinRunTime: time.Hour, Reservations: 8, NoPreemption: true}
	for i := range reflect.TypeOf(set).NumField() {
		var one config.Queue
		reflect.ValueOf(&one).Elem().Field(i).Set(reflect.ValueOf(set).Field(i))
		if reflect.ValueOf(one).IsZero() || reflect.DeepEqual(policy(one), engine.Config{}) {
			t.Errorf("%s does not reach the engine", reflect.TypeOf(set).Field(i).Name)
		}
	}
	want := engine.Config{Order: engine.FIFO, Placement: engine.Spread, HalfLife: 24 * time.Hour, EntryPenalty: -1, MinRunTime: time.Hour, Reservations: 8, NoPreemption: true}
	if got := policy(set); !reflect.DeepEqual(got, want) {
		t.Errorf("the engine is told %+v, want %+v", got, want)
	}
}
