package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"image"
	_ "image/jpeg" // the kinds of pictures that are taken
	_ "image/png"
	"strings"

	"gpupool/schema"
)

// readPhoto finds out what a picture is, by its bytes and not by what anyone calls it. Anything but a JPEG or PNG of bearable
// size is CodeInvalid, field photo.
func readPhoto(content []byte) (schema.RepairPhoto, error) {
	bad := func(what, right string) (schema.RepairPhoto, error) {
		return schema.RepairPhoto{}, &schema.Error{Code: schema.CodeInvalid, Field: "photo", Message: what, Hint: right}
	}
	if len(content) == 0 {
		return bad("it is empty", "a picture: JPEG or PNG")
	}
	if len(content) > schema.MaxPhotoBytes {
		return bad(fmt.Sprintf("it has %d bytes", len(content)), fmt.Sprintf("at most %d MiB", schema.MaxPhotoBytes>>20))
	}
	c, format, err := image.DecodeConfig(bytes.NewReader(content))
	if err != nil {
		return bad("its bytes are not those of a picture", "JPEG or PNG; a phone that keeps HEIC is to be set to the most compatible format")
	}
	if c.Width < 1 || c.Height < 1 || c.Width > schema.MaxPhotoPixels/c.Height {
		return bad(fmt.Sprintf("it is %d x %d pixels", c.Width, c.Height), fmt.Sprintf("at most %d million pixels", schema.MaxPhotoPixels/1_000_000))
	}
	sum := sha256.Sum256(content)
	return schema.RepairPhoto{ID: hex.EncodeToString(sum[:]), Type: "image/" + format, Bytes: int64(len(content)), Width: c.Width, Height: c.Height}, nil
}

// AddRepairPhoto keeps a picture with a repair. The same picture again is the one that is there. What it is is found out from
// its bytes.
func (s *Store) AddRepairPhoto(ctx context.Context, repair string, content []byte, note, by string) (schema.RepairPhoto, error) {
	p, err := readPhoto(content)
	if err != nil {
		return p, err
	}
	p.Note, p.By = strings.TrimSpace(note), by
	err = s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair) // the row's lock keeps two from passing the bound at once
		if err != nil {
			return err
		}
		var known []schema.RepairPhoto
		if err := tx.db.Where("repair = ?", r.ID).Find(&known).Error; err != nil {
			return err
		}
		for _, k := range known {
			if k.ID == p.ID {
				p = k
				return nil
			}
		}
		if len(known) >= schema.MaxPhotosPerRepair {
			return schema.Conflict(fmt.Sprintf("repair %s has %d photos", r.ID, len(known)), "an operator may take one away")
		}
		p.Repair, p.At = r.ID, tx.now
		if err := tx.db.Create(&p).Error; err != nil {
			return err
		}
		if _, err := tx.exec("INSERT INTO repair_photo_files (repair, id, content) VALUES (?, ?, ?)", p.Repair, p.ID, content); err != nil {
			return err
		}
		return tx.photoNews(&r, v, p, "photo", by)
	})
	return p, err
}

// photoNews tells who looks at the repair that its photos changed.
func (tx *Tx) photoNews(r *schema.Repair, v schema.Server, p schema.RepairPhoto, what, by string) error {
	tx.Emit(schema.Event{Kind: schema.EventRepairPhoto, Subject: r.ID, Server: v.ID, By: by}, map[string]any{"what": what, "photo": p.ID, "note": p.Note})
	r.Version++
	return tx.db.Save(r).Error
}

// RepairPhotos lists a repair's, the oldest first.
func (s *Store) RepairPhotos(ctx context.Context, repair string) ([]schema.RepairPhoto, error) {
	var out []schema.RepairPhoto
	return out, s.read(ctx).Where("repair = ?", repair).Order("at, id").Find(&out).Error
}

// RepairPhoto reads one with its bytes. Bytes that are no longer those that were kept are an error, never shown.
func (s *Store) RepairPhoto(ctx context.Context, repair, id string) (schema.RepairPhoto, []byte, error) {
	var p schema.RepairPhoto
	if err := one(s.read(ctx).Where("repair = ? AND id = ?", repair, id).Take(&p).Error, "photo", id); err != nil {
		return p, nil, err
	}
	var row struct{ Content []byte }
	if err := s.read(ctx).Raw("SELECT content FROM repair_photo_files WHERE repair = ? AND id = ?", p.Repair, p.ID).Scan(&row).Error; err != nil {
		return p, nil, err
	}
	if kept, err := readPhoto(row.Content); err != nil || kept.ID != p.ID {
		return p, nil, fmt.Errorf("photo %s of %s: its bytes are not those that were kept", p.ID, p.Repair)
	}
	return p, row.Content, nil
}

// RemoveRepairPhoto takes a picture away: one that shows what it should not.
func (s *Store) RemoveRepairPhoto(ctx context.Context, repair, id, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		var p schema.RepairPhoto
		if err := one(tx.lock(&p, "repair = ? AND id = ?", r.ID, id), "photo", id); err != nil {
			return err
		}
		for _, table := range []string{"repair_photo_files", "repair_photos"} {
			if _, err := tx.exec("DELETE FROM "+table+" WHERE repair = ? AND id = ?", r.ID, id); err != nil {
				return err
			}
		}
		return tx.photoNews(&r, v, p, "photo taken away", by)
	})
}

// RepairLight asks the BMC of a repair's server for its locator light, for who looks for the server. It is asked for while the
// repair waits for the technician: the repair's own process puts it out when it ends.
func (s *Store) RepairLight(ctx context.Context, repair string, lit bool, by string) (schema.BMCAct, error) {
	var a schema.BMCAct
	err := s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		if r.State != schema.RepairWaiting {
			return schema.Conflict(fmt.Sprintf("repair %s is %s", r.ID, r.State), "the light is switched while it waits for the technician")
		}
		a, err = tx.askBMC(v, schema.BMCLight, schema.BMCArgs{Lit: lit}, "repair "+r.ID, by)
		return err
	})
	return a, err
}

// RepairLastLight is what came of the last time that somebody switched the light at a repair; false where nobody has.
func (s *Store) RepairLastLight(ctx context.Context, r schema.Repair) (schema.BMCAct, bool, error) {
	var a schema.BMCAct
	err := s.read(ctx).Where("server = ? AND verb = ? AND reason = ?", r.Server, schema.BMCLight, "repair "+r.ID).Order("asked_at DESC, id DESC").Limit(1).Take(&a).Error
	if isNoRows(err) {
		return a, false, nil
	}
	return a, err == nil, err
}
