package images

import (
	"context"
	"errors"
	"fmt"

	"firstlight/appliance/internal/store"
)

// Remove forgets an image, and removes the blobs that no other image and no upload needs. That nobody uses it is the caller's to know.
func (l *Library) Remove(ctx context.Context, name string) error {
	l.sweeping.Lock()
	defer l.sweeping.Unlock()
	_, rev, err := l.get(ctx, name)
	if err != nil {
		return err
	}
	if err := l.store.Delete(ctx, prefix+name, rev); errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("image %q: %w", name, ErrUnknown)
	} else if err != nil {
		return fmt.Errorf("remove image %q: %w", name, err)
	}
	return l.sweep(ctx)
}

// DropUpload forgets an upload and removes the blobs that nothing else needs.
func (l *Library) DropUpload(ctx context.Context, id string) error {
	if _, err := l.upload(id); err != nil {
		return err
	}
	l.sweeping.Lock()
	defer l.sweeping.Unlock()
	if err := l.forget(id); err != nil {
		return err
	}
	return l.sweep(ctx)
}

// sweep removes the blobs that nothing names; sweeping is held. An image whose manifest does not read keeps all of them.
func (l *Library) sweep(ctx context.Context) error {
	keep, err := l.named(ctx)
	if err != nil {
		return fmt.Errorf("remove unused blobs: %w", err)
	}
	if _, err := l.blobs.sweep(keep); err != nil {
		return fmt.Errorf("remove unused blobs: %w", err)
	}
	return nil
}

// named are the blobs that images and uploads name.
func (l *Library) named(ctx context.Context) (map[string]bool, error) {
	all, err := l.List(ctx)
	if err != nil {
		return nil, err
	}
	keep := map[string]bool{}
	for _, img := range all {
		m, err := l.manifest(img)
		if err != nil {
			return nil, fmt.Errorf("image %q: %w", img.Name, err)
		}
		keep[img.ManifestSHA256] = true
		for _, c := range m.Chunks {
			keep[blobName(c.Compressed)] = true
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.uploads {
		for d := range u.chunks {
			keep[blobName(d)] = true
		}
	}
	return keep, nil
}
