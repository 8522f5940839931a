// Package codec encrypts what workflows carry, so that Temporal's database, its web pages and its
// operators see ciphertext: AES-256-GCM, with the key's id beside it.
//
// Invariants:
//   - The first key of a ring writes, all of them read: a key is rotated by putting a new one first
//     and dropping the old one when the retention time has passed.
//   - A ciphertext opens only with its key, whole, and under the key id it says; anything else is an
//     error, never a payload.
//   - What was written before encryption was switched on stays readable.
//
// The last means that the codec doesn't prove where a payload came from; who may write to the
// namespace can write in the clear. Not encrypted at all: workflow ids, types and search attributes.
// Not here: secrets, which don't belong in payloads in the first place (see activities/install and
// the secrets key of worker/config), and the key file (see schema/secret).
package codec
