package bench

import (
	"math"
	"slices"
)

// series is one figure per round, in the order of the rounds.
type series []float64

// median is the middle one; of an even number the mean of the middle two. Of none it is NaN, which meets no target.
func (s series) median() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	c := slices.Sorted(slices.Values(s))
	n := len(c)
	return (c[(n-1)/2] + c[n/2]) / 2
}

// quantile is the smallest value that at least the share q of the series does not exceed (nearest rank).
func (s series) quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	c := slices.Sorted(slices.Values(s))
	return c[min(max(int(math.Ceil(q*float64(len(c))))-1, 0), len(c)-1)]
}

func (s series) ends() (low, high float64) {
	if len(s) == 0 {
		return math.NaN(), math.NaN()
	}
	return slices.Min(s), slices.Max(s)
}

// ratios are the ends of the ratios of the rounds, each round's to its own peer's.
func (s series) ratios(peer series) (low, high float64) {
	var r series
	for i := range min(len(s), len(peer)) {
		r = append(r, s[i]/peer[i])
	}
	return r.ends()
}
