package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"firstlight/appliance/internal/store"
	"firstlight/gateway-client/ident"
)

// Bounds of what a person may enter.
const (
	maxMACs     = 16
	maxSerials  = 16
	maxSerial   = 128
	maxUser     = 64
	maxPlace    = 64
	maxPassword = 256
)

// Secret is a value that does not print and must not be compared with ==.
type Secret []byte

func (Secret) String() string { return "[secret]" }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return "[secret]" }

// MarshalText keeps it out of JSON and logs.
func (Secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }

// MarshalJSON keeps it out of JSON.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"[secret]"`), nil }

// Spec is what a person says about a new machine.
type Spec struct {
	// Name is a valid ident name.
	Name string
	// MACs, at least one, in any form that net.ParseMAC reads.
	MACs []string
	// UUID is optional.
	UUID string
	// DiskSerials name the disks that may be wiped; the first one gets the image.
	DiskSerials []string
	BMCURL      string
	BMCUser     string
	BMCPassword Secret
	// BMCCertificateSHA256 is the digest of the controller's leaf certificate, 32 bytes.
	BMCCertificateSHA256 []byte
	// Adopt: the machine runs and is never to be wiped: it is protected from the start, and disk serials and the controller may be
	// left out.
	Adopt bool
	// From is the name of a discovered machine that becomes this one: with its MACs, its UUID where the specification names
	// none, and its inventory, and with a node id of its own: what runs there now has no part in it. Empty for none.
	From string
	// Firmware is FirmwareUEFI or FirmwareBIOS, empty where nobody knows.
	Firmware string
	// Place is where people find it; it may be empty.
	Place string
	// By is who says it, for people.
	By string
}

// ErrTaken: a name, MAC or disk serial is another machine's.
var ErrTaken = errors.New("already taken")

// check normalises the specification in place.
func (s *Spec) check() error { return s.checkAs("add machine") }

func (s *Spec) checkAs(op string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf(op+" %q: "+format, append([]any{s.Name}, args...)...)
	}
	if !ident.Valid(s.Name) {
		return bad("want a name of 1 to %d letters a-z, digits, '.' and '-'", ident.MaxLen)
	}
	if len(s.Place) > maxPlace || Clip(s.Place) != s.Place {
		return bad("place %q: want at most %d bytes on one line", Clip(s.Place), maxPlace)
	}
	if s.Firmware != "" && s.Firmware != FirmwareUEFI && s.Firmware != FirmwareBIOS {
		return bad("firmware %q: want %s or %s", s.Firmware, FirmwareUEFI, FirmwareBIOS)
	}
	if len(s.MACs) == 0 || len(s.MACs) > maxMACs {
		return bad("want 1 to %d MACs, got %d", maxMACs, len(s.MACs))
	}
	for i, m := range s.MACs {
		hw, err := net.ParseMAC(m)
		if err != nil || len(hw) != 6 {
			return bad("%q is not a MAC of 6 bytes", m)
		}
		s.MACs[i] = hw.String()
	}
	slices.Sort(s.MACs)
	s.MACs = slices.Compact(s.MACs)
	if s.UUID != "" {
		u, err := uuid.Parse(s.UUID)
		if err != nil {
			return bad("uuid %q: %v", s.UUID, err)
		}
		s.UUID = u.String()
	}
	if len(s.DiskSerials) == 0 && !s.Adopt || len(s.DiskSerials) > maxSerials {
		return bad("want 1 to %d disk serials, got %d: a disk is named by its serial number, never by /dev name", maxSerials, len(s.DiskSerials))
	}
	for i, d := range s.DiskSerials {
		if slices.Contains(s.DiskSerials[:i], d) {
			return bad("disk %q is named twice: how many are wiped would not be their number", d)
		}
		if d == "" || len(d) > maxSerial || strings.TrimSpace(d) != d || strings.HasPrefix(d, "/dev/") {
			return bad("%q is not a disk's serial number", d)
		}
	}
	if s.Adopt && s.BMCURL == "" && s.BMCUser == "" && len(s.BMCPassword) == 0 && len(s.BMCCertificateSHA256) == 0 {
		return nil
	}
	u, err := url.Parse(s.BMCURL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return bad("BMC address: want https://HOST without a user, got %q", s.BMCURL)
	}
	if s.BMCUser == "" || len(s.BMCUser) > maxUser || len(s.BMCPassword) == 0 || len(s.BMCPassword) > maxPassword {
		return bad("want a BMC user of 1 to %d bytes and a password of 1 to %d", maxUser, maxPassword)
	}
	if len(s.BMCCertificateSHA256) != 32 {
		return bad("BMC certificate digest: want 32 bytes, got %d", len(s.BMCCertificateSHA256))
	}
	return nil
}

// AddMachine stores a new machine. A name, MAC or disk serial that another machine has is refused (ErrTaken) with that machine's
// name. A system UUID need not be unique in the field (INV-02): both machines are flagged.
func (r *Repo) AddMachine(ctx context.Context, s Spec, now time.Time) (Record, error) {
	r.add.Lock()
	defer r.add.Unlock()
	s.MACs = slices.Clone(s.MACs)
	var found Record
	if s.From != "" {
		var err error
		if found, err = r.discovered(ctx, &s); err != nil {
			return Record{}, err
		}
	}
	if err := s.check(); err != nil {
		return Record{}, err
	}
	all, err := r.Machines(ctx)
	if err != nil {
		return Record{}, err
	}
	if len(all) >= MaxMachines {
		return Record{}, fmt.Errorf("add machine %q: the fleet holds %d machines, its limit", s.Name, MaxMachines)
	}
	for i := range all {
		if all[i].Name == s.From {
			continue
		}
		if what := shared(&all[i], &s); what != "" {
			return Record{}, fmt.Errorf("add machine %q: %w: machine %q already has %s%s", s.Name, ErrTaken, all[i].Name, what, enrol(&all[i]))
		}
	}
	rec := Record{
		Name: s.Name, NodeID: ident.New("node"), MACs: s.MACs, UUID: s.UUID, DiskSerials: s.DiskSerials,
		BMC: BMC{URL: s.BMCURL, User: s.BMCUser}, Place: s.Place, BMCCertificateSHA256: s.BMCCertificateSHA256, Added: At(now),
	}
	rec.Firmware = s.Firmware
	if s.Adopt {
		rec.Adopted, rec.Protected = true, &Protection{Since: At(now), By: s.By, Why: "adopted as a machine that runs"}
	}
	if s.From != "" {
		rec.Hardware, rec.Alarms = found.Hardware, found.Alarms
	}
	if len(s.BMCPassword) > 0 {
		if err := r.setBMCPassword(ctx, s.Name, s.BMCPassword); err != nil {
			return Record{}, err
		}
	}
	if _, err := save(ctx, r.store, machinesPrefix+s.Name, &rec, 0); err != nil {
		return Record{}, fmt.Errorf("add machine %q: %w", s.Name, err)
	}
	if s.From != "" {
		if err := r.drop(ctx, machinesPrefix+s.From); err != nil {
			return rec, fmt.Errorf("add machine %q: forget %q: %w", s.Name, s.From, err)
		}
	}
	return rec, r.FlagUUID(ctx, &rec, rec.UUID, now)
}

// discovered fills a specification with what a discovered machine said of itself.
func (r *Repo) discovered(ctx context.Context, s *Spec) (Record, error) {
	found, err := r.Machine(ctx, s.From)
	if err != nil {
		return Record{}, fmt.Errorf("add machine %q: %w", s.Name, err)
	}
	if found.Discovered.IsZero() {
		return Record{}, fmt.Errorf("add machine %q: machine %q was not discovered, it is enrolled already", s.Name, s.From)
	}
	s.MACs = append(s.MACs, found.MACs...)
	if s.UUID == "" {
		s.UUID = found.UUID
	}
	return found, nil
}

// enrol is what to do about a clash with a discovered machine.
func enrol(m *Record) string {
	if m.Discovered.IsZero() {
		return ""
	}
	return ": enrol that one with --from " + m.Name
}

func shared(m *Record, s *Spec) string {
	if m.Name == s.Name {
		return "this name"
	}
	for _, mac := range s.MACs {
		if slices.Contains(m.MACs, mac) {
			return "MAC " + mac
		}
	}
	for _, d := range s.DiskSerials {
		if slices.Contains(m.DiskSerials, d) {
			return "disk serial " + d
		}
	}
	return ""
}

type bmcPassword struct {
	Value []byte `json:"value"`
}

func (r *Repo) setBMCPassword(ctx context.Context, machine string, p Secret) error {
	b, err := json.Marshal(bmcPassword{Value: p})
	if err != nil {
		return err
	}
	key := bmcSecretsPrefix + machine
	var rev int64
	e, err := r.store.Get(ctx, key)
	switch {
	case err == nil:
		rev = e.Rev
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	_, err = r.store.Put(ctx, key, b, rev)
	return err
}

// BMCPassword returns the password of a machine's controller, or ErrUnknown.
func (r *Repo) BMCPassword(ctx context.Context, machine string) (Secret, error) {
	p, _, err := load[bmcPassword](ctx, r.store, bmcSecretsPrefix+machine)
	return p.Value, err
}
