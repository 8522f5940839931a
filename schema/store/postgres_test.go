package store_test

import (
	"testing"

	"gpupool/schema/store/storetest"
)

// TestTheSameHoldsOnPostgreSQL runs all tests of this package again, with their stores on a PostgreSQL server.
func TestTheSameHoldsOnPostgreSQL(t *testing.T) { storetest.AgainOnPostgres(t) }
