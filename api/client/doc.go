// Package client calls the API: one method for each operation of openapi.yaml. It is generated (see ../generate.go).
//
// Not here: the types of bodies and answers (package contract), what an answer means (package call).
package client
