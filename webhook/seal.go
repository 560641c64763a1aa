package webhook

// Sealing what a PGStore writes, so that a dump of the database holds no secret. The
// invariant: a sealed text opens only with its key and only for the row that it was
// sealed for; moved to another row it is damaged. The form of AESGCM's is one byte of
// version, four that name the key, the nonce, and the cipher text with its tag.

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
)

// A Sealer encrypts and authenticates. bind is not part of the result, but Open fails
// unless it is given the same. It is used by many goroutines at once and keeps none of its
// arguments. [AESGCM] is one; another may ask a key management service.
type Sealer interface {
	Seal(ctx context.Context, plain, bind []byte) (sealed []byte, err error)
	Open(ctx context.Context, sealed, bind []byte) (plain []byte, err error)
}

// SealError says why a key can't be used or a sealed text not be opened. It holds neither.
type SealError struct {
	Reason string
}

func (e *SealError) Error() string { return "webhook: seal: " + e.Reason }

const (
	sealVersion = 1
	sealKeyName = 4
	sealHead    = 1 + sealKeyName
)

// AESGCM returns a Sealer that seals with the key, 32 random bytes, and opens what was
// sealed with it or with one of the former keys: to change keys, let every process know the
// new one as a former key first. The error is a [*SealError]. One key is good for 2³² seals.
func AESGCM(key []byte, former ...[]byte) (Sealer, error) {
	s := &aesGCM{}
	for _, k := range append([][]byte{key}, former...) {
		if len(k) != 32 {
			return nil, &SealError{Reason: fmt.Sprintf("a key has %d bytes, not 32", len(k))}
		}
		block, err := aes.NewCipher(k)
		if err != nil {
			return nil, &SealError{Reason: "AES can't be used"}
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, &SealError{Reason: "AES-GCM can't be used"}
		}
		// A hash of a random key says nothing of it.
		name := sha256.Sum256(append([]byte("rebase webhook key name\x00"), k...))
		s.keys = append(s.keys, sealKey{aead, name[:sealKeyName]})
	}
	return s, nil
}

type aesGCM struct{ keys []sealKey }

type sealKey struct {
	aead cipher.AEAD
	name []byte
}

func (s *aesGCM) Seal(_ context.Context, plain, bind []byte) ([]byte, error) {
	k := s.keys[0]
	head := append([]byte{sealVersion}, k.name...)
	return k.aead.Seal(head, nil, plain, bind), nil
}

func (s *aesGCM) Open(_ context.Context, sealed, bind []byte) ([]byte, error) {
	if len(sealed) < sealHead || sealed[0] != sealVersion {
		return nil, &SealError{Reason: "not sealed by AESGCM"}
	}
	known := false
	for _, k := range s.keys {
		if !bytes.Equal(k.name, sealed[1:sealHead]) {
			continue
		}
		known = true
		if plain, err := k.aead.Open(nil, nil, sealed[sealHead:], bind); err == nil {
			return plain, nil
		}
	}
	if !known {
		return nil, &SealError{Reason: "sealed with a key that is not known here"}
	}
	return nil, &SealError{Reason: "damaged, or of another row"}
}

// Format writes no key for any verb.
func (s *aesGCM) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, masked) }

// LogValue returns ***.
func (s *aesGCM) LogValue() slog.Value { return slog.StringValue(masked) }
