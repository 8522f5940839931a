// Package auth decides who calls and what they may do: bearer tokens, the console's cookie, servers' agents, and the one
// table of which role may use which route.
//
// Invariants: a route that is not in Table is refused; a token's secret is never kept, only its hash; a revoked token is
// refused at once by the process that revoked it and within CacheFor by the others.
// Not here: whose thing it is (the handlers scope tenants to their own), how agents sign (schema/agentproto).
package auth
