package codec

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/proto"

	"gpupool/schema/secret"
)

// Metadata of an encrypted payload. The encoding's value is the one Temporal's samples use, so that
// its tools show such payloads as encrypted.
const (
	encodingKey       = converter.MetadataEncoding
	encodingEncrypted = "binary/encrypted"
	keyIDKey          = "encryption-key-id"
)

// Errors of Decode. Both are about one payload; the workflow that meets one waits, and goes on when
// the keys are put right.
var (
	// ErrUnknownKey: the key that wrote the payload isn't in the ring.
	ErrUnknownKey = errors.New("the key that encrypted a workflow's payload is not in the key file")
	// ErrCorrupt: the payload was cut, changed or written with another key of the same id.
	ErrCorrupt = errors.New("a workflow's encrypted payload does not open: changed, or written with another key of this id")
)

// Codec is a converter.PayloadCodec. It has no state that changes: any goroutine may use it.
//
// Nonces are random, 96 bits: a key should write fewer than 2^32 payloads (NIST SP 800-38D, 8.3),
// about four years at 32 a second. Rotate before.
type Codec struct {
	writer string
	aeads  map[string]cipher.AEAD
}

var _ converter.PayloadCodec = (*Codec)(nil)

// New makes a codec of a ring, the first key of which writes.
func New(keys secret.Keys) (*Codec, error) {
	if err := keys.Check(); err != nil {
		return nil, fmt.Errorf("codec: %w", err)
	}
	c := &Codec{writer: keys[0].ID, aeads: make(map[string]cipher.AEAD, len(keys))}
	for _, k := range keys {
		block, err := aes.NewCipher(k.Secret[:])
		if err != nil {
			return nil, err
		}
		// The nonce is made and kept with the ciphertext by the AEAD itself.
		if c.aeads[k.ID], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Encode encrypts payloads, metadata included.
func (c *Codec) Encode(payloads []*common.Payload) ([]*common.Payload, error) {
	out := make([]*common.Payload, len(payloads))
	for i, p := range payloads {
		plain, err := proto.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("codec: %w", err)
		}
		out[i] = &common.Payload{
			Metadata: map[string][]byte{encodingKey: []byte(encodingEncrypted), keyIDKey: []byte(c.writer)},
			Data:     c.aeads[c.writer].Seal(nil, nil, plain, []byte(c.writer)),
		}
	}
	return out, nil
}

// Decode opens what Encode wrote and passes on what was never encrypted.
//
// Errors: ErrUnknownKey, ErrCorrupt.
func (c *Codec) Decode(payloads []*common.Payload) ([]*common.Payload, error) {
	out := make([]*common.Payload, len(payloads))
	for i, p := range payloads {
		if string(p.GetMetadata()[encodingKey]) != encodingEncrypted {
			out[i] = p
			continue
		}
		id := string(p.GetMetadata()[keyIDKey])
		aead := c.aeads[id]
		if aead == nil {
			return nil, fmt.Errorf("codec: key %q: %w (it has %q; hint: put the key back, after the writing one)", id, ErrUnknownKey, slices.Sorted(maps.Keys(c.aeads)))
		}
		plain, err := aead.Open(nil, nil, p.GetData(), []byte(id))
		if err != nil {
			return nil, fmt.Errorf("codec: key %q: %w", id, ErrCorrupt)
		}
		out[i] = &common.Payload{}
		if err := proto.Unmarshal(plain, out[i]); err != nil {
			return nil, fmt.Errorf("codec: key %q: %w: %w", id, ErrCorrupt, err)
		}
	}
	return out, nil
}

// DataConverter is the SDK's default converter behind the codec, for client.Options.
func (c *Codec) DataConverter() converter.DataConverter {
	return converter.NewCodecDataConverter(converter.GetDefaultDataConverter(), c)
}

// FailureConverter encrypts the messages and stack traces of errors too, for client.Options: an
// error from a BMC may say more than an id.
func (c *Codec) FailureConverter() converter.FailureConverter {
	return temporal.NewDefaultFailureConverter(temporal.DefaultFailureConverterOptions{
		DataConverter:          c.DataConverter(),
		EncodeCommonAttributes: true,
	})
}
