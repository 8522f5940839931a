package store

import (
	"fmt"
	"strings"

	"gpupool/schema"
)

// A machine that was retired may come back, and a new one may take the place that a retired one had. The retired server's row keeps
// its history, its certificates and its id; it gives up its name and its serial, which are then the new server's.

// takeOver sees to it that a new server's name, serial or MAC is free. What a retired server has is free where the new one is
// enrolled again; else the error says so. before is that retired server, "" where nobody had it.
func (tx *Tx) takeOver(field, value string, again bool, where string, arg any) (before string, err error) {
	var other schema.Server
	if err := tx.db.Where(where, arg).Limit(1).Find(&other).Error; err != nil || other.ID == "" {
		return "", err
	}
	taken := &schema.Error{Code: schema.CodeInvalid, Field: field, Message: fmt.Sprintf("%q is enrolled already", value), Hint: "it is server " + other.Name}
	switch {
	case other.Phase != schema.PhaseRetired:
		return "", taken
	case !again:
		taken.Hint = fmt.Sprintf("server %s, which is retired, has it; if this is that machine come back, or what stands in its place, enroll it with again: the retired server keeps its history under another name", other.Name)
		return "", taken
	}
	suffix := ".retired-" + strings.ToLower(other.ID[max(0, len(other.ID)-8):])
	if strings.HasSuffix(other.Name, suffix) {
		return other.ID, nil // by another of its names already
	}
	other.Name = strings.TrimRight(other.Name[:min(len(other.Name), 63-len(suffix))], ".-_") + suffix
	other.Serial += "#" + other.ID
	return other.ID, tx.saveServer(&other)
}
