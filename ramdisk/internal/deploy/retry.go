package deploy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Bounds of trying again.
const (
	// FetchAttempts bounds the tries of one transfer.
	FetchAttempts = 6
	// RetryDelay is the first pause before another try; it doubles up to RetryDelayMax, and up to half of it is left to chance, so
	// that many machines do not come back at one moment.
	RetryDelay    = time.Second
	RetryDelayMax = 16 * time.Second
	// RetryAfterMax bounds the pause that a server may ask for.
	RetryAfterMax = time.Minute
)

// patient is a Fetcher that tries again what may come right by itself.
type patient struct {
	Fetcher
	// tell says for people why and how long it waits; it must be safe from several goroutines.
	tell func(string)
}

// Fetch fetches; its error says how often and how long it was tried, and wraps what ended the last try.
func (p patient) Fetch(ctx context.Context, url string, limit int64) ([]byte, error) {
	start, delay := time.Now(), RetryDelay
	for try := 1; ; try++ {
		b, err := p.Fetcher.Fetch(ctx, url, limit)
		if err == nil {
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, ErrRefused) || errors.Is(err, ErrTooLong) {
			return nil, fmt.Errorf("fetch %s: %w", url, err)
		}
		if try == FetchAttempts {
			return nil, fmt.Errorf("fetch %s: given up after %d tries in %s: %w", url, try, time.Since(start).Round(time.Second), err)
		}
		wait := delay - rand.N(delay/2)
		var s *StatusError
		if errors.As(err, &s) {
			wait = max(wait, min(s.RetryAfter, RetryAfterMax))
		}
		p.tell(fmt.Sprintf("waiting %s for the image server (try %d of %d: %v)", wait.Round(time.Second), try, FetchAttempts, err))
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
		delay = min(2*delay, RetryDelayMax)
	}
}
