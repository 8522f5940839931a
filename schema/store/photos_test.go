package store_test

import (
	"bytes"
	"image"
	"image/png"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestAPhotoComesBackByteForByte(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t)
	v := storetest.Available(t, s, 1, "nvidia-h100-80gb", 8)
	r, err := s.BeginBurnIn(t.Context(), v.ID, "op")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 64, 64))); err != nil {
		t.Fatal(err)
	}
	b.Write([]byte{0, 1, 0xff, 0}) // what is behind the picture is kept too
	p, err := s.AddRepairPhoto(t.Context(), r.ID, b.Bytes(), "n", "tech")
	if err != nil {
		t.Fatal(err)
	}
	got, content, err := s.RepairPhoto(t.Context(), r.ID, p.ID)
	if err != nil || !bytes.Equal(content, b.Bytes()) || got != p {
		t.Fatalf("%v: %d bytes of %d, %+v", err, len(content), b.Len(), got)
	}
	if now, err := s.Repair(t.Context(), r.ID); err != nil || now.Version <= r.Version {
		t.Fatalf("who watches the repair is not told: %+v, %v", now, err)
	}
	if err := s.Exec(t.Context(), "UPDATE repair_photo_files SET content = (SELECT content FROM repair_photo_files LIMIT 0)"); err == nil {
		t.Fatal("a photo without bytes is kept")
	}
	if err := s.Exec(t.Context(), "UPDATE repair_photos SET id = 'x' || substr(id, 2)"); err != nil {
		t.Fatal(err)
	}
	if _, content, err := s.RepairPhoto(t.Context(), r.ID, "x"+p.ID[1:]); err == nil {
		t.Fatalf("bytes that are not its own are shown: %d", len(content))
	}
}

func FuzzAPhotoIsReadOrRefused(f *testing.F) {
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 2, 2))); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, content []byte) {
		p, err := store.ReadPhoto(content)
		if err != nil {
			if !schema.Is(err, schema.CodeInvalid) {
				t.Fatalf("refused as %v", err)
			}
			return
		}
		if len(p.ID) != 64 || p.Type != "image/png" && p.Type != "image/jpeg" || p.Width < 1 || p.Height < 1 || p.Width*p.Height > schema.MaxPhotoPixels {
			t.Fatalf("%+v", p)
		}
	})
}
