package auth

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what somebody is for. Each one may all that the one before it may.
type Role string

// The roles, least first.
const (
	// RoleViewer looks.
	RoleViewer Role = "viewer"
	// RoleTechnician stands at the rack: enrols, provisions and repairs machines.
	RoleTechnician Role = "technician"
	// RoleOperator also changes what machines and images there are, and stops everything.
	RoleOperator Role = "operator"
	// RoleAdmin also decides who may what.
	RoleAdmin Role = "admin"
)

// Permission is one kind of thing that somebody may do. Each route of the API has one.
type Permission string

// The permissions.
const (
	// PermRead: see machines, images, events, health.
	PermRead Permission = "read"
	// PermRepair: cancel, retry, resume.
	PermRepair Permission = "repair"
	// PermProvision: wipe and install a machine that is not in use.
	PermProvision Permission = "provision"
	// PermEnrol: give a discovered machine a name.
	PermEnrol Permission = "enrol"
	// PermManage: add, change, adopt, protect, remove machines and images; reinstall one in use; stop and resume everything.
	PermManage Permission = "manage"
	// PermAdmin: users, tokens, audit log.
	PermAdmin Permission = "admin"
)

// roles are all of them, least first.
var roles = []Role{RoleViewer, RoleTechnician, RoleOperator, RoleAdmin}

// permissions are all of them, in the order of the documents.
var permissions = []Permission{PermRead, PermRepair, PermProvision, PermEnrol, PermManage, PermAdmin}

// least is the table: the least role that has each permission. The README of appliance shows it, and a test compares them.
var least = map[Permission]Role{
	PermRead:      RoleViewer,
	PermRepair:    RoleTechnician,
	PermProvision: RoleTechnician,
	PermEnrol:     RoleTechnician,
	PermManage:    RoleOperator,
	PermAdmin:     RoleAdmin,
}

// Roles are all roles, least first.
func Roles() []Role { return slices.Clone(roles) }

// Permissions are all permissions.
func Permissions() []Permission { return slices.Clone(permissions) }

// ParseRole returns the role of this name, or ErrInvalid.
func ParseRole(s string) (Role, error) {
	if r := Role(s); r.rank() >= 0 {
		return r, nil
	}
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = string(r)
	}
	return "", fmt.Errorf("role %q: %w: want one of %s", s, ErrInvalid, strings.Join(names, ", "))
}

// Allows says whether the role has the permission. What is no role or no permission is never allowed.
func (r Role) Allows(p Permission) bool {
	want, ok := least[p]
	return ok && r.rank() >= want.rank()
}

func (r Role) rank() int { return slices.Index(roles, r) }
