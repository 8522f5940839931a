package simulate

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// The picture is one SVG: per report a panel with the accelerators in use (filled) and those that waiting jobs ask
// for (a line), over the replay's time.
const (
	panelWidth  = 960
	panelHeight = 220
	marginLeft  = 70
	marginTop   = 40
	columns     = 800 // points drawn per panel: more can't be told apart
)

// Draw writes the picture of the reports' queues and utilization.
func Draw(w io.Writer, reports ...*Report) error {
	var b strings.Builder
	height := len(reports)*(panelHeight+marginTop+40) + 20
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		panelWidth+marginLeft+30, height)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	for i, r := range reports {
		panel(&b, r, i*(panelHeight+marginTop+40)+marginTop)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func panel(b *strings.Builder, r *Report, top int) {
	name := r.Policy
	if name == "" {
		name = "default policy"
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="14">%s: %d accelerators, %.1f %% allocated, longest wait %s</text>`+"\n",
		marginLeft, top-12, html.EscapeString(name), r.Accelerators, 100*r.AllocatedShare,
		time.Duration(r.WaitMax*1e9).Round(time.Second))
	busy, waiting, peak := r.sampled()
	peak = max(peak, float64(r.Accelerators), 1)
	y := func(v float64) float64 { return float64(top) + panelHeight*(1-v/peak) }
	x := func(i int) float64 { return marginLeft + float64(i)*panelWidth/columns }
	fmt.Fprintf(b, `<path fill="#9ecae1" d="M%d %.1f`, marginLeft, y(0))
	for i, v := range busy {
		fmt.Fprintf(b, " L%.1f %.1f", x(i), y(v))
	}
	fmt.Fprintf(b, ` L%.1f %.1f Z"><title>accelerators in use</title></path>`+"\n", x(len(busy)-1), y(0))
	b.WriteString(`<polyline fill="none" stroke="#d94801" points="`)
	for i, v := range waiting {
		fmt.Fprintf(b, "%.1f,%.1f ", x(i), y(v))
	}
	b.WriteString(`"><title>accelerators waiting jobs ask for</title></polyline>` + "\n")
	for _, v := range []float64{0, float64(r.Accelerators), peak} {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#999" stroke-dasharray="3 3"/>`+"\n",
			marginLeft, marginLeft+panelWidth, y(v), y(v))
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n", marginLeft-6, y(v)+4, v)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", marginLeft, top+panelHeight+18, r.began.Format("2006-01-02 15:04"))
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", marginLeft+panelWidth, top+panelHeight+18,
		r.ended.Format("2006-01-02 15:04"))
}

// sampled is the series at equal steps: the time-weighted mean in use, the most waiting of each step, and the
// largest of all.
func (r *Report) sampled() (busy, waiting []float64, peak float64) {
	busy, waiting = make([]float64, columns), make([]float64, columns)
	span := r.ended.Sub(r.began)
	if span <= 0 || len(r.Series) == 0 {
		return busy, waiting, 1
	}
	step := span.Seconds() / columns
	for i, s := range r.Series {
		from := s.At.Sub(r.began).Seconds()
		to := span.Seconds()
		if i+1 < len(r.Series) {
			to = r.Series[i+1].At.Sub(r.began).Seconds()
		}
		for c := max(int(from/step), 0); c < columns && float64(c)*step < to; c++ {
			part := min(to, float64(c+1)*step) - max(from, float64(c)*step)
			busy[c] += s.Busy * part / step
			waiting[c] = max(waiting[c], s.Waiting)
			peak = max(peak, s.Waiting, s.Busy)
		}
	}
	return busy, waiting, peak
}
