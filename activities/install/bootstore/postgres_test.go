package bootstore_test

import (
	"testing"

	"gpupool/schema/store/storetest"
)

// TestTheSameHoldsOnPostgreSQL runs all tests of this package again, with their stores on a PostgreSQL server: two
// boot services, an active and a standby, share one there.
func TestTheSameHoldsOnPostgreSQL(t *testing.T) { storetest.AgainOnPostgres(t) }
