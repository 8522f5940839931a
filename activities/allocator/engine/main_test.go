package engine_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain keeps property tests from writing what failed into testdata: the seed they print is enough to repeat it.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
