package amd

import "time"

var zero time.Time
