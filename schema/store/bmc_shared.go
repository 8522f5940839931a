package store

import (
	"crypto/subtle"
	"fmt"
	"strings"

	"gpupool/schema"
	"gpupool/schema/secret"
)

// bmcPlace is where behind a BMC a server stands; no two servers stand at one.
func (n NewServer) bmcPlace() string {
	if n.BMCSystem != "" {
		return n.BMCAddress + "#" + n.BMCSystem
	}
	return n.BMCAddress + "#" + strings.ToUpper(n.Serial)
}

// placeAtBMC sees to it that a new server's place behind its BMC is free, and returns another server that is behind it, empty for
// none. A second server of one BMC is more often a slip of the hand than a blade, so it must name its system.
func (tx *Tx) placeAtBMC(at string, n NewServer) (neighbour string, err error) {
	if err := tx.exclusive("bmc places"); err != nil {
		return "", err
	}
	var others []schema.Server
	if err := tx.db.Where("bmc_address = ? AND phase <> ?", n.BMCAddress, schema.PhaseRetired).Order("id").Find(&others).Error; err != nil {
		return "", err
	}
	for _, o := range others {
		wrong := func(field, message, hint string) error {
			return &schema.Error{Code: schema.CodeInvalid, Field: at + field, Message: message, Hint: hint}
		}
		switch {
		case n.BMCSystem == "":
			return "", wrong("bmc_address", fmt.Sprintf("%q is enrolled already", n.BMCAddress), "it is server "+o.Name+"; where one BMC serves several servers, say in bmc_system which of its systems this one is")
		case n.BMCSystem == o.BMCSystem:
			return "", wrong("bmc_system", fmt.Sprintf("%q of %s is enrolled already", n.BMCSystem, n.BMCAddress), "it is server "+o.Name)
		case o.BMCProtocol != n.BMCProtocol:
			return "", wrong("bmc_address", fmt.Sprintf("%q is enrolled already", n.BMCAddress), "it is server "+o.Name+"; over ipmi a BMC serves one server")
		case o.Site != n.Site:
			return "", wrong("site", fmt.Sprintf("%q is not the site of the BMC's other servers", n.Site), "server "+o.Name+" is at "+o.Site)
		}
		neighbour = o.ID
	}
	// A retired server gives up its place.
	_, err = tx.exec("UPDATE servers SET bmc_place = bmc_place || '#' || id WHERE bmc_place = ? AND phase = ?", n.bmcPlace(), schema.PhaseRetired)
	return neighbour, err
}

// keepBMCLogin keeps the credential of a new server's BMC. All servers behind a BMC have one: a rotation by one would else lock
// out the others. So what is given beside a neighbour's must be the same, or be left out.
func (tx *Tx) keepBMCLogin(at string, n NewServer, id, neighbour string, ring *secret.Ring) error {
	if neighbour != "" {
		return tx.sameBMCLogin(at, n, neighbour, ring)
	}
	if n.BMCUsername == "" {
		return schema.Invalid(at+"bmc_username", n.BMCUsername, "the BMC account's name")
	}
	if n.BMCPassword == "" {
		return &schema.Error{Code: schema.CodeInvalid, Field: at + "bmc_password", Message: "is empty", Hint: "the BMC account's password"}
	}
	// What retired servers of this BMC left is nobody's.
	if _, err := tx.exec("DELETE FROM bmc_credentials WHERE server IN (SELECT id FROM servers WHERE bmc_address = ?)", n.BMCAddress); err != nil {
		return err
	}
	keyID, sealed, err := ring.Seal([]byte(n.BMCPassword), id)
	if err != nil {
		return err
	}
	_, err = tx.exec("INSERT INTO bmc_credentials (server, username, key_id, sealed, updated_at) VALUES (?, ?, ?, ?, ?)", id, n.BMCUsername, keyID, sealed, tx.now)
	return err
}

func (tx *Tx) sameBMCLogin(at string, n NewServer, neighbour string, ring *secret.Ring) error {
	var held BMCLogin
	if err := tx.db.Raw(loginOf, neighbour).Scan(&held).Error; err != nil {
		return err
	}
	if n.BMCUsername != "" && n.BMCUsername != held.Username {
		return &schema.Error{Code: schema.CodeInvalid, Field: at + "bmc_username", Message: fmt.Sprintf("%q is not the account that the BMC's other servers are driven by", n.BMCUsername), Hint: "all servers behind one BMC have one account: leave it out"}
	}
	if n.BMCPassword == "" {
		return nil
	}
	kept, err := ring.Open(held.KeyID, held.Sealed, held.Server)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(kept, []byte(n.BMCPassword)) != 1 {
		return &schema.Error{Code: schema.CodeInvalid, Field: at + "bmc_password", Message: "is not the one kept for this BMC", Hint: "all servers behind one BMC have one password: leave it out, or change it by `gpupool bmc credential`"}
	}
	return nil
}
