// Package config is the configuration of the gpupool binary: one typed Config for every role, read
// from a file, the environment and flags, in that order, the later over the earlier.
//
// It decides what may be set, what an absent setting means and which values are right. Without a
// file, `gpupool up` runs everything in one process on the defaults.
//
// Invariants:
//   - A name that isn't a setting is an error that names it, in the file, in the environment and on
//     the command line: a misspelt setting never falls silently to its default.
//   - Validate reports everything wrong at once, each with its field, its value and what is right.
//   - Settings are described once, in the tags of their fields; the reference and the commented
//     example file are made from them.
//
// Not here: what is kept in the database (servers, specs, tenants, quotas), the agent's
// configuration (see worker/agent), opening what a setting names.
package config
