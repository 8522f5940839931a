package usage

import (
	"cmp"
	"math/big"
	"slices"

	"gpupool/schema"
)

// Price is what an accelerator of a spec costs an hour from a whole hour of UTC on.
type Price struct {
	Spec     string         `json:"spec"`
	From     schema.Instant `gorm:"column:from_at" json:"from"`
	Currency string         `json:"currency"`        // ISO 4217, like EUR
	Micros   int64          `json:"micros_per_hour"` // millionths of the currency a GPU-hour
	By       string         `json:"by"`
}

// Prices are all there ever were, by spec, the oldest first.
type Prices map[string][]Price

// NewPrices sorts a list.
func NewPrices(list []Price) Prices {
	p := Prices{}
	for _, x := range list {
		p[x.Spec] = append(p[x.Spec], x)
	}
	for _, l := range p {
		slices.SortFunc(l, func(a, b Price) int { return cmp.Compare(a.From, b.From) })
	}
	return p
}

// At is the spec's price at a moment; nil where it had none.
func (p Prices) At(spec string, at schema.Instant) *Price {
	var now *Price
	for i, x := range p[spec] {
		if x.From <= at {
			now = &p[spec][i]
		}
	}
	return now
}

// Steady cuts w where some price changes.
func (p Prices) Steady(w Interval) []Interval {
	var at []schema.Instant
	for _, l := range p {
		for _, x := range l {
			if x.From > w.Start && x.From < w.End {
				at = append(at, x.From)
			}
		}
	}
	slices.Sort(at)
	out := []Interval{w}
	for _, t := range slices.Compact(at) {
		n := len(out) - 1
		out = append(out, Interval{t, out[n].End})
		out[n].End = t
	}
	return out
}

// Cost sums money exactly and rounds once, at the end. Its zero value is nothing.
type Cost struct {
	sum      big.Int // micros x milliseconds
	currency string
	missing  bool
}

// Add adds what ms GPU-milliseconds cost at a price; nil makes the cost unknown, as does a second currency.
func (c *Cost) Add(p *Price, ms int64) {
	if ms == 0 {
		return
	}
	if p == nil || c.currency != "" && c.currency != p.Currency {
		c.missing = true
		return
	}
	c.currency = p.Currency
	c.sum.Add(&c.sum, new(big.Int).Mul(big.NewInt(p.Micros), big.NewInt(ms)))
}

// Micros is the sum in millionths of the currency, rounded half away from zero; nil where a part has no price.
func (c *Cost) Micros() (*int64, string) {
	if c.missing || c.currency == "" {
		return nil, ""
	}
	half := big.NewInt(Hour / 2)
	if c.sum.Sign() < 0 {
		half.Neg(half)
	}
	q := new(big.Int).Quo(new(big.Int).Add(&c.sum, half), big.NewInt(Hour))
	if !q.IsInt64() {
		return nil, ""
	}
	n := q.Int64()
	return &n, c.currency
}
