package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"gpupool/schema"
)

// MostAllowed is how many serials a site's allow-list may have.
const MostAllowed = 50000

// AllowSerials makes serials the allow-list of a site, in the place of the one before; none takes the list away. While a site has
// one, only machines with a serial on it are kept when they are found, enrolled, and installed. A serial is the same in capitals.
func (s *Store) AllowSerials(ctx context.Context, site string, serials []string, by string) error {
	if !NamePattern.MatchString(site) {
		return schema.Invalid("site", site, nameRight)
	}
	if len(serials) > MostAllowed {
		return schema.Invalid("serials", fmt.Sprintf("a list of %d", len(serials)), fmt.Sprintf("at most %d", MostAllowed))
	}
	seen := map[string]int{}
	for i, given := range serials {
		serial := canonSerial(given)
		if serial == "" || len(serial) > 128 || strings.ContainsFunc(serial, unicode.IsControl) {
			return schema.Invalid(fmt.Sprintf("serials[%d]", i), given, "a chassis serial number of 1 to 128 characters on one line")
		}
		if j, twice := seen[serial]; twice {
			return schema.Invalid(fmt.Sprintf("serials[%d]", i), given, fmt.Sprintf("another one: serials[%d] is the same", j))
		}
		seen[serial] = i
	}
	return s.Write(ctx, func(tx *Tx) error {
		if err := tx.exclusive("allowed serials"); err != nil {
			return err
		}
		if _, err := tx.exec("DELETE FROM allowed_serials WHERE site = ?", site); err != nil {
			return err
		}
		for serial := range seen {
			if _, err := tx.exec(`INSERT INTO allowed_serials (site, serial, "by", at) VALUES (?, ?, ?, ?)`, site, serial, by, tx.now); err != nil {
				return err
			}
		}
		return nil
	})
}

// AllowedSerials is a site's allow-list in order; empty where it has none.
func (s *Store) AllowedSerials(ctx context.Context, site string) ([]string, error) {
	out := []string{}
	return out, s.read(ctx).Raw("SELECT serial FROM allowed_serials WHERE site = ? ORDER BY serial", site).Scan(&out).Error
}

func canonSerial(serial string) string { return strings.ToUpper(strings.TrimSpace(serial)) }

// listed says whether a serial is on its site's allow-list.
func (tx *Tx) listed(site, serial string) (schema.Listed, error) {
	var n struct{ Listed, Here int64 }
	if err := tx.db.Raw("SELECT count(*) AS listed, COALESCE(SUM(CASE WHEN serial = ? THEN 1 ELSE 0 END), 0) AS here FROM allowed_serials WHERE site = ?", canonSerial(serial), site).Scan(&n).Error; err != nil {
		return "", err
	}
	switch {
	case n.Listed == 0:
		return schema.ListedNone, nil
	case canonSerial(serial) == "":
		return schema.ListedUnknown, nil
	case n.Here == 0:
		return schema.ListedNo, nil
	}
	return schema.ListedYes, nil
}

// mustBeAllowed refuses a machine that is not on its site's allow-list; field names the serial where it was given.
func (tx *Tx) mustBeAllowed(field, site, serial string) error {
	is, err := tx.listed(site, serial)
	if err != nil || is == schema.ListedYes || is == schema.ListedNone {
		return err
	}
	what := "serial "
	if field != "" { // which says it
		what = ""
	}
	return &schema.Error{Code: schema.CodeUnsafe, Field: field, Message: what + fmt.Sprintf("%q is not on the allow-list of site %s", serial, site),
		Hint: "if the machine is yours, add its serial: `gpupool bmc allow`"}
}

// mark says of each find whether it is on its site's allow-list.
func mark(found []schema.BMCFound, lists map[string][]string) {
	for i := range found {
		list, serial := lists[found[i].Site], canonSerial(found[i].Serial)
		_, here := slices.BinarySearch(list, serial)
		switch {
		case len(list) == 0:
			found[i].Listed = schema.ListedNone
		case serial == "":
			found[i].Listed = schema.ListedUnknown
		case here:
			found[i].Listed = schema.ListedYes
		default:
			found[i].Listed = schema.ListedNo
		}
	}
}
