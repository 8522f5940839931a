// Package api is the HTTP face: REST for people and programs by the contract in openapi.yaml, and the endpoints that
// servers' agents call.
//
// Invariants: every route is in auth.Table and guarded by it; a tenant's caller learns nothing of another tenant's
// things, not even that they exist; an error's cause goes to the log and never into an answer; a request that is refused
// has written nothing but its audit event. A wait (long-poll, event stream) costs the database nothing until an event
// about the thing it waits for comes.
//
// Not here: what is true (schema/store), what happens next (workflows, behind Processes), pages (api/console).
package api
