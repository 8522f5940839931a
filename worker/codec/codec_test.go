package codec

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"gpupool/schema/secret"
)

func codec(t interface{ Fatal(...any) }, keys ...secret.Key) *Codec {
	c, err := New(keys)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func key(id string, fill byte) secret.Key {
	return secret.Key{ID: id, Secret: [secret.KeySize]byte(bytes.Repeat([]byte{fill}, secret.KeySize))}
}

func TestWhatIsEncodedIsDecodedAndNotSeen(t *testing.T) {
	t.Parallel()
	c := codec(t, secret.NewKey())
	rapid.Check(t, func(t *rapid.T) {
		in := &common.Payload{
			Metadata: map[string][]byte{"encoding": []byte(rapid.String().Draw(t, "encoding"))},
			Data:     rapid.SliceOfN(rapid.Byte(), 0, 4096).Draw(t, "data"),
		}
		if string(in.Metadata["encoding"]) == encodingEncrypted {
			t.Skip()
		}
		sealed, err := c.Encode([]*common.Payload{in, in})
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(sealed[0].Data, sealed[1].Data) {
			t.Fatal("the same payload has the same ciphertext twice: the nonce was reused")
		}
		if len(in.Data) > 8 && bytes.Contains(sealed[0].Data, in.Data) {
			t.Fatal("the plain text is in the ciphertext")
		}
		opened, err := c.Decode(sealed)
		if err != nil {
			t.Fatal(err)
		}
		for _, out := range opened {
			if !proto.Equal(in, out) {
				t.Fatalf("got %v, want %v", out, in)
			}
		}
	})
}

func TestRotation(t *testing.T) {
	t.Parallel()
	old, next := key("old", 1), key("next", 2)
	in := []*common.Payload{{Data: []byte("job")}}
	byOld, err := codec(t, old).Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	both := codec(t, next, old)
	if _, err := both.Decode(byOld); err != nil {
		t.Fatalf("the old key no longer reads: %v", err)
	}
	byBoth, err := both.Encode(in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := codec(t, next).Decode(byBoth); err != nil {
		t.Fatalf("the first key didn't write: %v", err)
	}
	_, err = codec(t, next).Decode(byOld)
	if !errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), `"old"`) {
		t.Fatalf("got %v, want ErrUnknownKey that names old", err)
	}
}

func TestOnlyTheWholePayloadUnderItsKeyOpens(t *testing.T) {
	t.Parallel()
	c := codec(t, key("a", 1), key("b", 2))
	for name, spoil := range map[string]func(p *common.Payload){
		"a bit changed":        func(p *common.Payload) { p.Data[len(p.Data)/2] ^= 1 },
		"cut":                  func(p *common.Payload) { p.Data = p.Data[:len(p.Data)-1] },
		"cut to less than tag": func(p *common.Payload) { p.Data = p.Data[:5] },
		"empty":                func(p *common.Payload) { p.Data = nil },
		"under another key":    func(p *common.Payload) { p.Metadata[keyIDKey] = []byte("b") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sealed, err := c.Encode([]*common.Payload{{Data: []byte("allocation")}})
			if err != nil {
				t.Fatal(err)
			}
			spoil(sealed[0])
			if _, err := c.Decode(sealed); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("got %v, want ErrCorrupt", err)
			}
		})
	}
}

func TestWhatWasNeverEncryptedPasses(t *testing.T) {
	t.Parallel()
	in, err := converter.GetDefaultDataConverter().ToPayloads("from before", nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := codec(t, secret.NewKey()).Decode(in.Payloads)
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		if !proto.Equal(in.Payloads[i], out[i]) {
			t.Fatalf("payload %d changed", i)
		}
	}
}

func TestConvertersHideValuesAndErrors(t *testing.T) {
	t.Parallel()
	c := codec(t, secret.NewKey())
	p, err := c.DataConverter().ToPayload(map[string]string{"server": "r1s3"})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := c.DataConverter().FromPayload(p, &got); err != nil || got["server"] != "r1s3" || strings.Contains(p.String(), "r1s3") {
		t.Fatalf("%v, %v, %v", got, err, p)
	}
	f := c.FailureConverter().ErrorToFailure(errors.New("bmc of r1s3 refused the session"))
	if strings.Contains(f.String(), "r1s3") {
		t.Fatalf("the failure shows its message: %v", f)
	}
	if err := c.FailureConverter().FailureToError(f); !strings.Contains(err.Error(), "bmc of r1s3 refused") {
		t.Fatalf("got %v", err)
	}
}
