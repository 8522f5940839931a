// Package cli is the client side of the gpupool command: the verbs that operators, technicians and tenants type. It
// speaks to a pool only through the API's generated client.
//
// Invariants: what people read goes to standard output as tables or lines, what programs read is the API's own JSON
// (-o json); messages and errors go to standard error; every way to end has an exit code of the documented list; text
// from the pool is made harmless for the terminal before it is shown.
// Not here: server roles (up, api, worker, ...), which cmd/gpupool wires itself.
package cli
