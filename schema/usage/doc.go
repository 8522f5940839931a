// Package usage is the arithmetic of GPU time: how an interval splits into phases and hours, what of it is charged, what
// state an accelerator's time was, whether the states sum to what was installed, what the counts say.
//
// Units: moments are Unix milliseconds UTC, intervals half-open [start, end), amounts whole GPU-milliseconds (one
// accelerator for one millisecond; 3,600,000 are one GPU-hour), money millionths of the currency. Sums are sums of a x d
// for each slice, never sums of a times sums of d.
// Invariant: it is pure: no clock, no database, no time zone of the process. Not here: reading and keeping (schema/store).
package usage
