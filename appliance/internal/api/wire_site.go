package api

import (
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
)

// Bounds of accounts' lists.
const (
	// MaxAudit bounds one page of the audit log.
	MaxAudit = 500
)

// BeginUpload says which image comes: Manifest is the body that imagebuild wrote as manifest.json, byte for byte.
type BeginUpload struct {
	Name     string `json:"name"`
	Manifest []byte `json:"manifest"`
}

// Upload is an image that is on its way. The same image under the same name again goes on with the same upload.
type Upload struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Missing are the blobs that are not here yet, by their SHA-256 in hex, in the order in which they are wanted. The answer to a blob
	// leaves them out.
	Missing []string `json:"missing"`
	// Total and Have are bytes.
	Total int64      `json:"total"`
	Have  int64      `json:"have"`
	Began fleet.Time `json:"began"`
	// Image is set when the image is known already: then nothing is missing and there is nothing to finish.
	Image *images.Image `json:"image,omitempty"`
}

// Health is what the doctor finds.
type Health struct {
	// State is the worst of the checks': "ok", "warn" or "fail".
	State   string        `json:"state"`
	Checked fleet.Time    `json:"checked"`
	Checks  []HealthCheck `json:"checks"`
	// Stop says who stopped everything and when; null while everything goes on.
	Stop *fleet.Stop `json:"stop"`
}

// HealthCheck is one check. Why and Next are empty for one that is well.
type HealthCheck struct {
	Name  string `json:"name"`
	State string `json:"state"`
	What  string `json:"what"`
	Why   string `json:"why"`
	Next  string `json:"next"`
}

// User is an account.
type User struct {
	Name    string     `json:"name"`
	Role    string     `json:"role"`
	Created fleet.Time `json:"created"`
	// LastLogin is null before the first.
	LastLogin fleet.Time `json:"last_login"`
}

// AddUser makes an account.
type AddUser struct {
	Name     string `json:"name"`
	Role     string `json:"role"`
	Password string `json:"password"`
}

// String hides the password.
func (a AddUser) String() string { return "user " + a.Name }

// GoString hides the password.
func (a AddUser) GoString() string { return a.String() }

// SetUser changes an account; what is empty stays.
type SetUser struct {
	Role     string `json:"role,omitempty"`
	Password string `json:"password,omitempty"`
}

// String hides the password.
func (SetUser) String() string { return "changes of a user" }

// GoString hides the password.
func (s SetUser) GoString() string { return s.String() }

// Token is a token of the API, without its value.
type Token struct {
	Name    string     `json:"name"`
	Role    string     `json:"role"`
	By      string     `json:"by"`
	Created fleet.Time `json:"created"`
	Expires fleet.Time `json:"expires"`
	// Used is when it was last used, null before.
	Used fleet.Time `json:"used"`
}

// MintToken makes a token that is good for so many seconds.
type MintToken struct {
	Name  string `json:"name"`
	Role  string `json:"role"`
	LifeS int64  `json:"life_s"`
}

// MintedToken is a token with its value, which is shown this once.
type MintedToken struct {
	Token
	Value string `json:"value"`
}

// String hides the value.
func (m MintedToken) String() string { return "token " + m.Name }

// GoString hides the value.
func (m MintedToken) GoString() string { return m.String() }

// AuditEntry is one thing that somebody did, or was refused.
type AuditEntry struct {
	Seq  uint64     `json:"seq"`
	Time fleet.Time `json:"time"`
	Who  string     `json:"who"`
	Role string     `json:"role"`
	// From is the address that it came from.
	From    string `json:"from"`
	What    string `json:"what"`
	Object  string `json:"object"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
}

// AuditPage is part of the audit log, newest first.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	// Before continues it; zero at its beginning.
	Before uint64 `json:"before"`
}

// MintJoin asks for a one-time token with which a site agent joins.
type MintJoin struct {
	LifeS int64 `json:"life_s"`
}

// JoinToken is the token and what an agent needs beside it. It is shown this once.
type JoinToken struct {
	NodeID  string     `json:"node_id"`
	Role    string     `json:"role"`
	Expires fleet.Time `json:"expires"`
	// Gateway is where to join, ServerName the name in its certificate, SPKIPins the SHA-256 of its keys (hex).
	Gateway    string   `json:"gateway"`
	ServerName string   `json:"server_name"`
	SPKIPins   []string `json:"spki_pins"`
	// JoinSigningKey and JoinEncryptionKey are PKIX DER.
	JoinSigningKey    []byte `json:"join_signing_key"`
	JoinEncryptionKey []byte `json:"join_encryption_key"`
	TrustDomain       string `json:"trust_domain"`
	SiteID            string `json:"site_id"`
	Token             []byte `json:"token"`
}

// String hides the token.
func (j JoinToken) String() string { return "join token of " + j.NodeID }

// GoString hides the token.
func (j JoinToken) GoString() string { return j.String() }
