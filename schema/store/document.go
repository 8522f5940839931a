package store

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	gormschema "gorm.io/gorm/schema"
)

// document keeps JSON in a TEXT column. The two drivers give text differently: SQLite's as bytes or string, as it was
// written, PostgreSQL's as string, which database/sql puts into no json.RawMessage.
type document struct{}

// Registered is said in the fields' tags: `gorm:"serializer:document"`.
func init() { gormschema.RegisterSerializer("document", document{}) }

func (document) Scan(ctx context.Context, field *gormschema.Field, dst reflect.Value, value any) error {
	var d json.RawMessage
	switch v := value.(type) {
	case nil:
	case string:
		d = json.RawMessage(v)
	case []byte:
		d = append(d, v...) // the driver's buffer is its own
	default:
		return fmt.Errorf("column %s holds a %T, not text", field.DBName, value)
	}
	field.ReflectValueOf(ctx, dst).SetBytes(d)
	return nil
}

func (document) Value(_ context.Context, field *gormschema.Field, _ reflect.Value, value any) (any, error) {
	d, ok := value.(json.RawMessage)
	if !ok {
		return nil, fmt.Errorf("field %s is a %T, not json.RawMessage", field.Name, value)
	}
	if d == nil {
		return nil, nil
	}
	return string(d), nil
}
