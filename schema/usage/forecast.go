package usage

import (
	"fmt"
	"math"
	"time"
)

// Trend is a straight line through daily demand, by least squares, beside what is there.
type Trend struct {
	Model    string    `json:"model"`
	Days     int       `json:"days"`            // that the line rests on
	Demand   float64   `json:"gpu_hours_a_day"` // on the last day, by the line
	Slope    float64   `json:"gpu_hours_a_day_a_day"`
	Spread   float64   `json:"spread_gpu_hours"`   // standard error of the line's residuals
	Capacity float64   `json:"capacity_gpu_hours"` // available a day, now
	Exceeds  *string   `json:"exceeds,omitempty"`  // the day on which the line passes the capacity; absent = not within Horizon
	Text     string    `json:"text"`
	Points   []float64 `json:"points"` // GPU-hours of each day, the oldest first
}

// Horizon is how far a trend is followed.
const Horizon = 2 * 365

// minDays is how many days a line needs to mean anything.
const minDays = 7

// Forecast follows the daily demand of a model, the oldest day first, to the day after last on which it passes capacity
// (GPU-hours a day).
func Forecast(model string, demand []float64, capacity float64, last time.Time) Trend {
	t := Trend{Model: model, Days: len(demand), Capacity: capacity, Points: demand}
	n := float64(len(demand))
	if len(demand) < minDays {
		t.Text = fmt.Sprintf("%d days of history: a trend needs %d.", len(demand), minDays)
		return t
	}
	var sx, sy, sxx, sxy float64
	for i, y := range demand {
		x := float64(i)
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	t.Slope = (n*sxy - sx*sy) / (n*sxx - sx*sx)
	zero := (sy - t.Slope*sx) / n
	t.Demand = zero + t.Slope*(n-1)
	var rest float64
	for i, y := range demand {
		d := y - zero - t.Slope*float64(i)
		rest += d * d
	}
	t.Spread = math.Sqrt(rest / (n - 2))
	line := fmt.Sprintf("Demand of %s is %.1f GPU-hours a day, changing by %+.2f a day (spread %.1f over %d days); %.1f are available.", model, t.Demand, t.Slope, t.Spread, t.Days, capacity)
	switch {
	case t.Demand >= capacity:
		day := last.Format(time.DateOnly)
		t.Exceeds = &day
		t.Text = line + " It exceeds the capacity already."
	case t.Slope > 0 && (capacity-t.Demand)/t.Slope <= Horizon:
		in := int(math.Ceil((capacity - t.Demand) / t.Slope))
		day := last.AddDate(0, 0, in).Format(time.DateOnly)
		t.Exceeds = &day
		t.Text = line + fmt.Sprintf(" At this pace it exceeds the capacity on %s, in %d days.", day, in)
	default:
		t.Text = line + fmt.Sprintf(" It stays below the capacity for the next %d days.", Horizon)
	}
	return t
}
