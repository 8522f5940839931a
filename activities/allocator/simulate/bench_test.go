package simulate

import (
	"os"
	"testing"
)

// BenchmarkEngine prints the figures of Bench; go test -bench Engine -benchtime 1x.
func BenchmarkEngine(b *testing.B) {
	for range b.N {
		for _, f := range Bench(os.Getenv("QUICK") != "", func(line string) { b.Log(line) }) {
			if !f.Holds {
				b.Errorf("%s: %.4g %s, goal %g", f.Name, f.Value, f.Unit, f.Goal)
			}
		}
	}
}
