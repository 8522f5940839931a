// Package client calls the API. The generated part has one method for each operation of openapi.yaml; New adds the
// credential, and Check turns an answer that is not a success into the *schema.Error that the server meant.
//
// Types of bodies and answers are in package contract.
package client
