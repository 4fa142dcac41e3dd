package flood

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// A number has settled when it went no lower for quiet; it is asked for again after every look.
const (
	quiet = 10 * time.Second
	look  = 100 * time.Millisecond
)

// Goroutines reads how many a program has from its metrics, in Prometheus's text format.
func Goroutines(metrics io.Reader) (int, error) {
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "firstlight_goroutines ")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0, fmt.Errorf("read goroutines: %w", err)
		}
		return n, nil
	}
	return 0, errors.Join(errors.New("read goroutines: the metrics do not say"), lines.Err())
}

// settled returns the lowest of many values: what is left when transfers and connections of the flood are over.
func settled(ctx context.Context, read func(context.Context) (int, error)) (int, error) {
	lowest, since := math.MaxInt, time.Now()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		n, err := read(ctx)
		if err != nil {
			return 0, err
		}
		if n < lowest {
			lowest, since = n, time.Now()
		}
		if time.Since(since) >= quiet {
			return lowest, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
	}
}
