package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// How the embedded member is run.
const (
	// compactAfter is how long old revisions are kept: nobody here reads the past.
	compactAfter = "1h"
	// startTimeout bounds the wait for the member's election of itself (1 s on a calm machine).
	startTimeout = 60 * time.Second
	// requestTimeout bounds one request, so that a stuck disk becomes an error.
	requestTimeout = 30 * time.Second
	// watchBuffer is how many changes a channel of Watch holds.
	watchBuffer = 64
	// listPage is how many entries one request of List asks for: tens of thousands at once would hold up everybody else's requests.
	listPage = 1000
)

// Config of the embedded member.
type Config struct {
	// Dir is the member's own directory; made with mode 0700 when missing.
	Dir string
	// Log gets the member's own errors, and nothing below; nil discards them.
	Log *slog.Logger
}

// Etcd is a Store on one embedded etcd member.
type Etcd struct {
	server *embed.Etcd
	client *clientv3.Client
	closed chan struct{}
	once   sync.Once
}

// Open starts the member and returns once it accepts writes. The member listens nowhere: its only client is in this process.
// A second process on the same directory waits for the first one's file lock until the start times out.
func Open(ctx context.Context, cfg Config) (*Etcd, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	ec := embed.NewConfig()
	ec.Name = "firstlight"
	ec.Dir = cfg.Dir
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(quiet(cfg.Log))
	// A member has to advertise a peer URL, and this one is never dialled: a cluster of one has no peers.
	nowhere := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	ec.ListenPeerUrls, ec.ListenClientUrls = nil, nil
	ec.AdvertisePeerUrls, ec.AdvertiseClientUrls = []url.URL{nowhere}, []url.URL{nowhere}
	ec.InitialCluster = ec.InitialClusterFromName(ec.Name)
	ec.QuotaBackendBytes = Quota
	ec.AutoCompactionMode = embed.CompactorModePeriodic
	ec.AutoCompactionRetention = compactAfter
	ec.UnsafeNoFsync = false

	server, err := start(ctx, ec)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", cfg.Dir, err)
	}
	return &Etcd{server: server, client: v3client.New(server.Server), closed: make(chan struct{})}, nil
}

func start(ctx context.Context, ec *embed.Config) (*embed.Etcd, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	type started struct {
		server *embed.Etcd
		err    error
	}
	done := make(chan started, 1)
	go func() {
		s, err := embed.StartEtcd(ec)
		done <- started{s, err}
	}()
	var s started
	select {
	case s = <-done:
	case <-ctx.Done():
		go func() {
			if s := <-done; s.server != nil {
				s.server.Close()
			}
		}()
		return nil, fmt.Errorf("member does not start, perhaps another process holds the directory: %w", ctx.Err())
	}
	if s.err != nil {
		return nil, s.err
	}
	select {
	case <-s.server.Server.ReadyNotify():
		return s.server, nil
	case err := <-s.server.Err():
		s.server.Close()
		return nil, err
	case <-ctx.Done():
		s.server.Close()
		return nil, fmt.Errorf("member is not ready: %w", ctx.Err())
	}
}

// Close stops the member. Channels of Watch close, later calls return ErrClosed.
func (e *Etcd) Close() error {
	e.once.Do(func() {
		close(e.closed)
		e.client.Close()
		e.server.Close()
	})
	return nil
}

// Get implements Store.
func (e *Etcd) Get(ctx context.Context, key string) (Entry, error) {
	ctx, cancel, err := e.request(ctx)
	if err != nil {
		return Entry{}, err
	}
	defer cancel()
	r, err := e.client.Get(ctx, key)
	if err != nil {
		return Entry{}, e.fail("read", key, err)
	}
	if len(r.Kvs) == 0 {
		return Entry{}, fmt.Errorf("read %q: %w", key, ErrNotFound)
	}
	return entry(r.Kvs[0]), nil
}

// Put implements Store.
func (e *Etcd) Put(ctx context.Context, key string, value []byte, rev int64) (int64, error) {
	if err := Check(key, value); err != nil {
		return 0, err
	}
	ctx, cancel, err := e.request(ctx)
	if err != nil {
		return 0, err
	}
	defer cancel()
	r, err := e.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).
		Then(clientv3.OpPut(key, string(value))).Commit()
	if err != nil {
		return 0, e.fail("write", key, err)
	}
	if !r.Succeeded {
		return 0, fmt.Errorf("write %q: %w", key, ErrConflict)
	}
	return r.Header.Revision, nil
}

// Delete implements Store.
func (e *Etcd) Delete(ctx context.Context, key string, rev int64) error {
	ctx, cancel, err := e.request(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	r, err := e.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", rev)).
		Then(clientv3.OpDelete(key)).
		Else(clientv3.OpGet(key, clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return e.fail("delete", key, err)
	}
	if r.Succeeded && rev != 0 {
		return nil
	}
	if r.Succeeded || len(r.Responses[0].GetResponseRange().Kvs) == 0 {
		return fmt.Errorf("delete %q: %w", key, ErrNotFound)
	}
	return fmt.Errorf("delete %q: %w", key, ErrConflict)
}

// List implements Store.
func (e *Etcd) List(ctx context.Context, prefix string) ([]Entry, error) {
	// An empty prefix is the range of all keys, which etcd writes as from "\x00" (etcd API, RangeRequest).
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	if prefix == "" {
		from = "\x00"
	}
	out := []Entry{}
	var rev int64
	for {
		r, err := e.page(ctx, from, end, rev)
		if err != nil {
			return nil, e.fail("list", prefix, err)
		}
		for _, kv := range r.Kvs {
			out = append(out, entry(kv))
		}
		if !r.More {
			return out, nil
		}
		// Every page is of the moment of the first one.
		if rev == 0 {
			rev = r.Header.Revision
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// page reads part of a range, as it was at a revision; 0 is now.
func (e *Etcd) page(ctx context.Context, from, end string, rev int64) (*clientv3.GetResponse, error) {
	ctx, cancel, err := e.request(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return e.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(listPage), clientv3.WithRev(rev),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
}

// Watch implements Store.
func (e *Etcd) Watch(ctx context.Context, prefix string) (<-chan Entry, error) {
	rctx, cancelRead, err := e.request(ctx)
	if err != nil {
		return nil, err
	}
	defer cancelRead()
	// The revision of now, read through consensus, fixes from where the watch counts even if it is set up later.
	now, err := e.client.Get(rctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return nil, e.fail("watch", prefix, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	changes := e.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(now.Header.Revision+1))
	out := make(chan Entry, watchBuffer)
	go func() {
		defer close(out)
		defer cancel()
		for {
			var r clientv3.WatchResponse
			var ok bool
			select {
			case r, ok = <-changes:
			case <-e.closed:
				return
			}
			if !ok || r.Err() != nil {
				return
			}
			for _, ev := range r.Events {
				c := entry(ev.Kv)
				if ev.Type == mvccpb.Event_DELETE {
					c.Deleted, c.Value = true, nil
				}
				select {
				case out <- c:
				case <-ctx.Done():
					return
				case <-e.closed:
					return
				}
			}
		}
	}()
	return out, nil
}

func (e *Etcd) request(ctx context.Context) (context.Context, context.CancelFunc, error) {
	select {
	case <-e.closed:
		return nil, nil, ErrClosed
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	return ctx, cancel, nil
}

func (e *Etcd) fail(op, key string, err error) error {
	select {
	case <-e.closed:
		return ErrClosed
	default:
	}
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf("%s %q: the store is full (quota %d MiB): %w", op, key, Quota>>20, err)
	}
	return fmt.Errorf("%s %q: %w", op, key, err)
}

func entry(kv *mvccpb.KeyValue) Entry {
	return Entry{Key: string(kv.Key), Value: kv.Value, Rev: kv.ModRevision}
}
