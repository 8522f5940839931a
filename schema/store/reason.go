package store

import (
	"encoding/json"

	"gpupool/schema"
)

// Reason reads why a job waits as it is kept on the job; false where it does not wait.
func Reason(doc string) (schema.ReasonDoc, bool) {
	var r schema.ReasonDoc
	if doc == "" || json.Unmarshal([]byte(doc), &r) != nil {
		return r, false
	}
	return r, true
}
