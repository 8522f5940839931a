package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"gpupool/schema"
	"gpupool/schema/store"
)

func TestWhatPostgreSQLCantDoNowIsSaidInWords(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]string{
		"53100": "is full",                    // disk_full
		"53300": "can't work now",             // too_many_connections
		"57P03": "can't work now",             // cannot_connect_now: it is starting
		"57P01": "can't work now",             // admin_shutdown
		"08006": "can't work now",             // connection_failure
		"25006": "standby",                    // read_only_sql_transaction
		"23505": "", "42601": "", "22003": "", // faults of the statement are ours
	} {
		err := fmt.Errorf("writing events: %w", &pgconn.PgError{Code: code, Message: "m"})
		got := store.Trouble(err)
		switch {
		case want == "" && got != nil:
			t.Errorf("%s is said to be %q", code, got.Message)
		case want != "" && (got == nil || got.Code != schema.CodeUnavailable || !strings.Contains(got.Message, want) || !errors.Is(got, err)):
			t.Errorf("%s is said to be %+v, want %q", code, got, want)
		}
	}
	if got := store.Trouble(errors.New("something else")); got != nil {
		t.Errorf("an error that is not the database's is said to be %q", got.Message)
	}
}
