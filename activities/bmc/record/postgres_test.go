package record_test

import (
	"testing"

	"gpupool/schema/store/storetest"
)

// TestTheSameHoldsOnPostgreSQL runs all tests of this package again, with their stores on a PostgreSQL server: what processes
// share there is locked by other means than in SQLite.
func TestTheSameHoldsOnPostgreSQL(t *testing.T) { storetest.AgainOnPostgres(t) }
