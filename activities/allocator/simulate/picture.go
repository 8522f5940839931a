package simulate

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// The picture is one SVG. Each report has two plots one above the other, over the same time as all others: the share
// of accelerators in use (filled), and the accelerators that waiting jobs ask for (a line), on a scale that is the same
// for every report, so that policies compare by eye.
const (
	plotWidth   = 960
	plotHeight  = 120
	plotGap     = 16
	marginLeft  = 70
	marginTop   = 40
	panelHeight = marginTop + 2*plotHeight + plotGap + 34
	columns     = 800 // points drawn per plot: more can't be told apart
	timeMarks   = 6
)

// axes is what all panels share.
type axes struct {
	from, to time.Time
	peak     float64 // the most that waited in any report
}

// Draw writes the picture of the reports' queues and utilization.
func Draw(w io.Writer, reports ...*Report) error {
	var b strings.Builder
	ax := axes{peak: 1}
	series := make([][2][]float64, len(reports))
	for i, r := range reports {
		if i == 0 || r.began.Before(ax.from) {
			ax.from = r.began
		}
		if r.ended.After(ax.to) {
			ax.to = r.ended
		}
	}
	for i, r := range reports {
		busy, waiting := r.sampled(ax.from, ax.to)
		series[i] = [2][]float64{busy, waiting}
		for _, v := range waiting {
			ax.peak = max(ax.peak, v)
		}
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		plotWidth+marginLeft+60, len(reports)*panelHeight+10)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	for i, r := range reports {
		ax.panel(&b, r, series[i][0], series[i][1], i*panelHeight+marginTop)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (ax *axes) panel(b *strings.Builder, r *Report, busy, waiting []float64, top int) {
	name := r.Policy
	if name == "" {
		name = "default policy"
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="14">%s: %d accelerators, %.1f %% allocated, mean wait %s, longest %s</text>`+"\n",
		marginLeft, top-14, html.EscapeString(name), r.Accelerators, 100*r.AllocatedShare,
		time.Duration(r.WaitMean*1e9).Round(time.Second), time.Duration(r.WaitMax*1e9).Round(time.Second))
	x := func(i int) float64 { return marginLeft + float64(i)*plotWidth/columns }

	full := max(float64(r.Accelerators), 1)
	y := scale(b, top, full, "in use", func(v float64) string { return fmt.Sprintf("%.0f %%", 100*v/full) })
	fmt.Fprintf(b, `<path fill="#9ecae1" d="M%d %.1f`, marginLeft, y(0))
	for i, v := range busy {
		fmt.Fprintf(b, " L%.1f %.1f", x(i), y(v))
	}
	fmt.Fprintf(b, ` L%.1f %.1f Z"><title>accelerators in use</title></path>`+"\n", x(len(busy)-1), y(0))

	below := top + plotHeight + plotGap
	y = scale(b, below, ax.peak, "asked for by waiting jobs", func(v float64) string { return fmt.Sprintf("%.0f", v) })
	b.WriteString(`<polyline fill="none" stroke="#d94801" points="`)
	for i, v := range waiting {
		fmt.Fprintf(b, "%.1f,%.1f ", x(i), y(v))
	}
	b.WriteString(`"><title>accelerators waiting jobs ask for</title></polyline>` + "\n")

	for i := range timeMarks + 1 {
		at := ax.from.Add(ax.to.Sub(ax.from) / timeMarks * time.Duration(i))
		px := marginLeft + plotWidth*i/timeMarks
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="#999"/>`+"\n", px, px, below+plotHeight, below+plotHeight+4)
		fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle" font-size="11">%s</text>`+"\n", px, below+plotHeight+17, at.Format("2006-01-02 15:04"))
	}
}

// scale draws a plot's lines at nothing, half and all, and gives where a value lies.
func scale(b *strings.Builder, top int, most float64, what string, label func(float64) string) func(float64) float64 {
	y := func(v float64) float64 { return float64(top) + plotHeight*(1-v/most) }
	for _, v := range []float64{0, most / 2, most} {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#bbb" stroke-dasharray="3 3"/>`+"\n",
			marginLeft, marginLeft+plotWidth, y(v), y(v))
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end" font-size="11">%s</text>`+"\n", marginLeft-6, y(v)+4, label(v))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="11" fill="#555">%s</text>`+"\n", marginLeft+6, top+13, what)
	return y
}

// sampled is the series at equal steps of a time: the time-weighted mean in use, and the most waiting of each step.
func (r *Report) sampled(begin, end time.Time) (busy, waiting []float64) {
	busy, waiting = make([]float64, columns), make([]float64, columns)
	span := end.Sub(begin)
	if span <= 0 || len(r.Series) == 0 {
		return busy, waiting
	}
	step := span.Seconds() / columns
	for i, s := range r.Series {
		from := s.At.Sub(begin).Seconds()
		to := r.ended.Sub(begin).Seconds()
		if i+1 < len(r.Series) {
			to = r.Series[i+1].At.Sub(begin).Seconds()
		}
		for c := max(int(from/step), 0); c < columns && float64(c)*step < to; c++ {
			part := min(to, float64(c+1)*step) - max(from, float64(c)*step)
			busy[c] += s.Busy * part / step
			waiting[c] = max(waiting[c], s.Waiting)
		}
	}
	return busy, waiting
}
