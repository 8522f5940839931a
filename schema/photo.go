package schema

// Bounds of photos.
const (
	MaxPhotoBytes      = 16 << 20 // one photo: a phone's camera makes 3 to 12 MB
	MaxPhotoPixels     = 100_000_000
	MaxPhotosPerRepair = 20
)

// RepairPhoto is a picture that somebody took at a repair. It is kept as it was sent, with what the camera wrote into it.
type RepairPhoto struct {
	Repair string  `gorm:"primaryKey" json:"repair"`
	ID     string  `gorm:"primaryKey" json:"id"` // the SHA-256 of its bytes, in hex
	Type   string  `json:"type"`                 // image/jpeg or image/png, by what its bytes are
	Bytes  int64   `json:"bytes"`
	Width  int     `json:"width"` // in pixels
	Height int     `json:"height"`
	Note   string  `json:"note,omitempty"`
	By     string  `json:"by"`
	At     Instant `json:"at"`
}
