// Package contract is openapi.yaml in Go: the types that go over the wire and the list of operations a server has.
// Both are generated (see ../generate.go); nothing here is written by hand.
//
// Not here: what the operations do (package api), how to call them (package client).
package contract
