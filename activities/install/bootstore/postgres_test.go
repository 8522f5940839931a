package bootstore_test

import (
	"os"
	"os/exec"
	"testing"

	"gpupool/schema/store/storetest"
)

// TestTheSameHoldsOnPostgreSQL runs all tests of this package again, with their stores on a PostgreSQL server: two
// boot services, an active and a standby, share one there.
func TestTheSameHoldsOnPostgreSQL(t *testing.T) {
	if os.Getenv(storetest.PostgresEnv) != "" {
		return // this is that run
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.timeout=5m")
	cmd.Env = append(os.Environ(), storetest.PostgresEnv+"="+storetest.Postgres(t))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
