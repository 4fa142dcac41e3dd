// Package machinelog keeps what each machine's own agents said lately, on disk and bounded, for people who want to read along.
//
// It is no record: lines may be missing, and what a machine says is a claim, shown as text. What happened is in the events. It is
// for appliance; it knows machines by their node id and reads nothing but its own folder.
package machinelog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/time/rate"

	"firstlight/gateway-client/ident"
)

// Bounds.
const (
	// maxFile is when a machine's file is put aside, keptFiles how many there are of one machine with the present one.
	maxFile, keptFiles = 1 << 20, 3
	// maxText bounds a line in bytes.
	maxText = 2 << 10
	// linesPerSecond and lineBurst bound what one machine may write.
	linesPerSecond, lineBurst = 64, 1024
	// maxFollowers bounds those who follow one machine; maxBehind is how many lines one of them may be behind.
	maxFollowers, maxBehind = 32, 1024
	// MaxTail bounds what Tail returns.
	MaxTail = 10_000
)

// ErrTooMany: enough people follow this machine already.
var ErrTooMany = errors.New("too many follow this machine")

// Line is one line.
type Line struct {
	// Seq grows by one with each line of a machine, also over restarts of the appliance.
	Seq uint64 `json:"seq"`
	// Time is when the agent says that it said so, by a clock that may be wrong.
	Time time.Time `json:"time"`
	// Source is the agent's role, "ramdisk" or "node".
	Source string `json:"source"`
	Text   string `json:"text"`
}

// Logs are the logs of all machines. It is safe for use from many goroutines.
type Logs struct {
	root *os.Root
	now  func() time.Time

	mu       sync.Mutex
	machines map[string]*log
}

// log is one machine's. Its mutex is held while its files are read or written.
type log struct {
	mu     sync.Mutex
	loaded bool
	seq    uint64
	size   int64
	limit  *rate.Limiter
	// lost counts the lines over the limit since the last that was written.
	lost      int
	followers map[chan Line]bool
}

// Open opens the folder, and makes it with mode 0700 when it is missing.
func Open(dir string, now func() time.Time) (*Logs, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open machine logs: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open machine logs: %w", err)
	}
	return &Logs{root: root, now: now, machines: map[string]*log{}}, nil
}

// Close closes the folder.
func (l *Logs) Close() error { return l.root.Close() }

func (l *Logs) of(node string) (*log, error) {
	if !ident.Valid(node) {
		return nil, fmt.Errorf("machine log: %q is no node id", node)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.machines[node]
	if m == nil {
		m = &log{limit: rate.NewLimiter(linesPerSecond, lineBurst), followers: map[chan Line]bool{}}
		l.machines[node] = m
	}
	return m, nil
}

// Append writes what a machine's agent said. Dropped is how many lines the agent itself threw away before these. Lines that come
// too fast are counted in place of being written; that is no error.
func (l *Logs) Append(node, source string, dropped uint64, lines []Line) error {
	m, err := l.of(node)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := l.load(node, m); err != nil {
		return err
	}
	now := l.now()
	var out []Line
	add := func(at time.Time, text string) {
		m.seq++
		out = append(out, Line{Seq: m.seq, Time: at.UTC().Truncate(time.Millisecond), Source: source, Text: clean(text)})
	}
	if dropped > 0 {
		add(now, fmt.Sprintf("(%d lines were lost: the agent said more than fits)", dropped))
	}
	for _, line := range lines {
		if !m.limit.AllowN(now, 1) {
			m.lost++
			continue
		}
		if m.lost > 0 {
			add(now, fmt.Sprintf("(%d lines were lost: more than %d in a second)", m.lost, linesPerSecond))
			m.lost = 0
		}
		add(line.Time, line.Text)
	}
	if len(out) == 0 {
		return nil
	}
	if err := l.write(node, m, out); err != nil {
		return err
	}
	m.tell(out)
	return nil
}

// tell gives new lines to those who follow; one who is too far behind is let go. The mutex is held.
func (m *log) tell(lines []Line) {
	for f := range m.followers {
		for _, line := range lines {
			select {
			case f <- line:
				continue
			default:
			}
			delete(m.followers, f)
			close(f)
			break
		}
	}
}

// Tail returns a machine's newest lines, oldest of them first, at most n of them; none where it never said anything.
func (l *Logs) Tail(node string, n int) ([]Line, error) {
	m, err := l.of(node)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return l.tail(node, min(n, MaxTail))
}

// Follow returns what Tail does, and a channel of all that comes after it, until ctx ends. A follower that does not keep up has its
// channel closed: it may follow anew.
func (l *Logs) Follow(ctx context.Context, node string, n int) ([]Line, <-chan Line, error) {
	m, err := l.of(node)
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.followers) >= maxFollowers {
		return nil, nil, ErrTooMany
	}
	before, err := l.tail(node, min(n, MaxTail))
	if err != nil {
		return nil, nil, err
	}
	f := make(chan Line, maxBehind)
	m.followers[f] = true
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.followers[f] {
			delete(m.followers, f)
			close(f)
		}
	})
	return before, f, nil
}

// Remove forgets a machine. Those who follow it are let go.
func (l *Logs) Remove(node string) error {
	m, err := l.of(node)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for f := range m.followers {
		delete(m.followers, f)
		close(f)
	}
	m.loaded, m.seq, m.size = false, 0, 0
	if err := l.root.RemoveAll(node); err != nil {
		return fmt.Errorf("remove machine log: %w", err)
	}
	return nil
}

// file is a machine's file: 0 is written to, higher ones are older.
func file(node string, i int) string { return path.Join(node, strconv.Itoa(i)+".jsonl") }

// load learns where the last process stopped; the mutex is held.
func (l *Logs) load(node string, m *log) error {
	if m.loaded {
		return nil
	}
	last, err := l.tail(node, 1)
	if err != nil {
		return err
	}
	if len(last) > 0 {
		m.seq = last[0].Seq
	}
	info, err := l.root.Stat(file(node, 0))
	switch {
	case err == nil:
		m.size = info.Size()
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read machine log: %w", err)
	}
	m.loaded = true
	return nil
}

// write appends lines, and puts the file aside when it is full; the mutex is held.
func (l *Logs) write(node string, m *log, lines []Line) (err error) {
	var b bytes.Buffer
	if m.size > 0 {
		// What a crash cut off in the middle of a line must not swallow the next.
		if end, err := l.lastByte(node, m.size); err == nil && end != '\n' {
			b.WriteByte('\n')
		}
	}
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, line := range lines {
		if err := e.Encode(line); err != nil {
			return fmt.Errorf("write machine log: %w", err)
		}
	}
	if m.size > 0 && m.size+int64(b.Len()) > maxFile {
		if err := l.rotate(node); err != nil {
			return err
		}
		m.size = 0
	}
	if err := l.root.Mkdir(node, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write machine log: %w", err)
	}
	f, err := l.root.OpenFile(file(node, 0), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("write machine log: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := f.Write(b.Bytes())
	m.size += int64(n)
	return err
}

func (l *Logs) lastByte(node string, size int64) (byte, error) {
	f, err := l.root.Open(file(node, 0))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], size-1)
	return b[0], err
}

func (l *Logs) rotate(node string) error {
	for i := keptFiles - 1; i > 0; i-- {
		if err := l.root.Rename(file(node, i-1), file(node, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write machine log: %w", err)
		}
	}
	return nil
}

// tail reads files from the newest back until there are n lines; the mutex is held.
func (l *Logs) tail(node string, n int) ([]Line, error) {
	var out []Line
	for i := 0; i < keptFiles && len(out) < n; i++ {
		lines, err := l.read(file(node, i))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read machine log: %w", err)
		}
		out = append(lines, out...)
	}
	return out[max(0, len(out)-max(0, n)):], nil
}

// read reads one file; what a crash left of a line is passed over.
func (l *Logs) read(name string) ([]Line, error) {
	f, err := l.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []Line
	lines := bufio.NewScanner(io.LimitReader(f, 2*maxFile))
	lines.Buffer(nil, 16*maxText)
	for lines.Scan() {
		var line Line
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Seq > 0 {
			out = append(out, line)
		}
	}
	return out, lines.Err()
}

// clean makes one bounded line of readable text of what a machine said.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), maxText)], ""))
	return strings.TrimRight(s, " ")
}
