package store

import "context"

// Observed returns s, where tell is called around every Put and Delete: with durable false before, and with durable true after one
// that succeeded. It is called from the caller's goroutine and may take its time.
func Observed(s Store, tell func(key string, durable bool)) Store { return observed{s, tell} }

type observed struct {
	Store
	tell func(key string, durable bool)
}

// Put implements Store.
func (o observed) Put(ctx context.Context, key string, value []byte, rev int64) (int64, error) {
	o.tell(key, false)
	next, err := o.Store.Put(ctx, key, value, rev)
	if err == nil {
		o.tell(key, true)
	}
	return next, err
}

// Delete implements Store.
func (o observed) Delete(ctx context.Context, key string, rev int64) error {
	o.tell(key, false)
	err := o.Store.Delete(ctx, key, rev)
	if err == nil {
		o.tell(key, true)
	}
	return err
}
