package session

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

var (
	bucketMeta      = []byte("meta")
	bucketCommands  = []byte("commands")
	bucketWorkflows = []byte("workflows")
	bucketEvents    = []byte("events")
	keyID           = []byte("journal_id")
	keyTrust        = []byte("trust")
)

// errFull: no room for another command until the gateway acks some.
var errFull = errors.New("journal is full")

// journal is what the agent did, on its disk: written before it acts, and before it says so.
type journal struct {
	db *bbolt.DB
	id string
}

// record is one command.
type record struct {
	BodySHA256 []byte
	Kind       string
	NotAfter   time.Time
	// Update is the serialized, signed terminal update; empty until the command is done.
	Update []byte `json:",omitempty"`
	Acked  bool   `json:",omitempty"`
}

// workflow is the highest generation that was run.
type workflow struct {
	Generation uint64
	Used       time.Time
}

func openJournal(path string) (*journal, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: JournalTimeout})
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	j := &journal{db: db}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{bucketMeta, bucketCommands, bucketWorkflows, bucketEvents} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		if id := meta.Get(keyID); id != nil {
			j.id = string(id)
			return nil
		}
		j.id = ident.New("jrn")
		return meta.Put(keyID, []byte(j.id))
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	return j, nil
}

func (j *journal) close() error { return j.db.Close() }

// verdict is what begin found.
type verdict int

const (
	fresh   verdict = iota // journaled now: run it
	known                  // seen before with the same body: answer again
	replay                 // seen before with another body
	stale                  // generation below the workflow's highest
	unknown                // no such kind
)

// begin journals the start of a command, unless it was seen, is stale or of no kind of ours; in this order.
func (j *journal) begin(body *agentv1.CommandBody, sum []byte, supported bool, now time.Time) (verdict, *record, error) {
	var v verdict
	var r *record
	err := j.db.Update(func(tx *bbolt.Tx) error {
		commands, workflows := tx.Bucket(bucketCommands), tx.Bucket(bucketWorkflows)
		id := []byte(body.CommandId)
		if raw := commands.Get(id); raw != nil {
			r = new(record)
			if err := json.Unmarshal(raw, r); err != nil {
				return err
			}
			v = known
			if string(r.BodySHA256) != string(sum) {
				v = replay
			}
			return nil
		}
		wf := []byte(body.WorkflowId)
		var highest workflow
		if raw := workflows.Get(wf); len(wf) > 0 && raw != nil {
			if err := json.Unmarshal(raw, &highest); err != nil {
				return err
			}
		}
		switch {
		case body.Generation < highest.Generation:
			v = stale
			return nil
		case !supported:
			v = unknown
			return nil
		}
		if err := makeRoom(commands, now); err != nil {
			return err
		}
		if len(wf) > 0 {
			if err := oneLess(workflows, wf); err != nil {
				return err
			}
			if err := putJSON(workflows, wf, workflow{Generation: body.Generation, Used: now}); err != nil {
				return err
			}
		}
		return putJSON(commands, id, record{BodySHA256: sum, Kind: body.Kind, NotAfter: body.NotAfter.AsTime()})
	})
	if err != nil {
		return fresh, nil, fmt.Errorf("journal command %s: %w", body.CommandId, err)
	}
	return v, r, nil
}

// makeRoom forgets commands that are acked and expired: a replay of them is refused by their expiry.
func makeRoom(commands *bbolt.Bucket, now time.Time) error {
	if commands.Stats().KeyN < MaxCommands {
		return nil
	}
	var old [][]byte
	err := commands.ForEach(func(k, raw []byte) error {
		var r record
		if err := json.Unmarshal(raw, &r); err != nil {
			return err
		}
		if r.Acked && now.After(r.NotAfter) {
			old = append(old, k)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(old) == 0 {
		return errFull
	}
	for _, k := range old {
		if err := commands.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// oneLess makes room for a workflow that is not remembered yet.
func oneLess(workflows *bbolt.Bucket, wf []byte) error {
	if workflows.Get(wf) != nil || workflows.Stats().KeyN < MaxWorkflows {
		return nil
	}
	var oldest []byte
	var used time.Time
	err := workflows.ForEach(func(k, raw []byte) error {
		var w workflow
		if err := json.Unmarshal(raw, &w); err != nil {
			return err
		}
		if oldest == nil || w.Used.Before(used) {
			oldest, used = k, w.Used
		}
		return nil
	})
	if err != nil {
		return err
	}
	return workflows.Delete(oldest)
}

func putJSON(b *bbolt.Bucket, key []byte, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, raw)
}

// change rewrites one command's record; a command that is not there is no error.
func (j *journal) change(id string, f func(*record)) error {
	err := j.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketCommands)
		raw := b.Get([]byte(id))
		if raw == nil {
			return nil
		}
		var r record
		if err := json.Unmarshal(raw, &r); err != nil {
			return err
		}
		f(&r)
		return putJSON(b, []byte(id), r)
	})
	if err != nil {
		return fmt.Errorf("journal command %s: %w", id, err)
	}
	return nil
}

func (j *journal) finish(u *agentv1.CommandUpdate) error {
	raw, err := proto.Marshal(u)
	if err != nil {
		return err
	}
	return j.change(u.CommandId, func(r *record) { r.Update = raw })
}

// forget makes a command one that was never seen. Its workflow's generation stays.
func (j *journal) forget(id string) error {
	err := j.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketCommands).Delete([]byte(id)) })
	if err != nil {
		return fmt.Errorf("journal command %s: %w", id, err)
	}
	return nil
}

func (j *journal) acked(id string) error {
	return j.change(id, func(r *record) { r.Acked = true })
}

// open returns the commands without an ack: with their update when they are done, nil when they were cut off.
func (j *journal) open() (map[string]*record, error) {
	out := make(map[string]*record)
	err := j.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketCommands).ForEach(func(k, raw []byte) error {
			r := new(record)
			if err := json.Unmarshal(raw, r); err != nil {
				return err
			}
			if !r.Acked {
				out[string(k)] = r
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	return out, nil
}

// append journals an event under the next sequence.
func (j *journal) append(e *agentv1.Event) error {
	err := j.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketEvents)
		seq, err := b.NextSequence()
		if err != nil {
			return err
		}
		e.Sequence = seq
		raw, err := proto.Marshal(e)
		if err != nil {
			return err
		}
		if len(raw) > MaxEventBytes {
			return fmt.Errorf("event %s has %d bytes, want at most %d", e.Kind, len(raw), MaxEventBytes)
		}
		if first, _ := b.Cursor().First(); first != nil && seq-binary.BigEndian.Uint64(first) >= MaxEvents {
			if err := b.Delete(first); err != nil {
				return err
			}
		}
		return b.Put(binary.BigEndian.AppendUint64(nil, seq), raw)
	})
	if err != nil {
		return fmt.Errorf("journal event: %w", err)
	}
	return nil
}

// events returns the next batch above a sequence.
func (j *journal) events(after uint64) ([]*agentv1.Event, error) {
	var out []*agentv1.Event
	err := j.db.View(func(tx *bbolt.Tx) error {
		size := 0
		c := tx.Bucket(bucketEvents).Cursor()
		for k, raw := c.Seek(binary.BigEndian.AppendUint64(nil, after+1)); k != nil; k, raw = c.Next() {
			size += len(raw)
			if len(out) == EventsPerBatch || (len(out) > 0 && size > BatchBytes) {
				return nil
			}
			e := new(agentv1.Event)
			if err := proto.Unmarshal(raw, e); err != nil {
				return err
			}
			out = append(out, e)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read journal's events: %w", err)
	}
	return out, nil
}

func (j *journal) eventsAcked(seq uint64) error {
	err := j.db.Update(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketEvents).Cursor()
		for k, _ := c.First(); k != nil && binary.BigEndian.Uint64(k) <= seq; k, _ = c.First() {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return fmt.Errorf("journal event ack: %w", err)
	}
	return nil
}

// trust returns the newest bundle that was applied; nil when there is none.
func (j *journal) trust() (*commonv1.SignedTrustBundle, error) {
	var out *commonv1.SignedTrustBundle
	err := j.db.View(func(tx *bbolt.Tx) error {
		raw := tx.Bucket(bucketMeta).Get(keyTrust)
		if raw == nil {
			return nil
		}
		out = new(commonv1.SignedTrustBundle)
		return proto.Unmarshal(raw, out)
	})
	return out, err
}

func (j *journal) setTrust(s *commonv1.SignedTrustBundle) error {
	raw, err := proto.Marshal(s)
	if err != nil {
		return err
	}
	return j.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyTrust, raw) })
}
