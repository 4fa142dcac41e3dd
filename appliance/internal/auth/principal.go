package auth

import "context"

// Kind says how somebody showed who he is.
type Kind string

// The kinds.
const (
	// KindLocal: by the unix socket, as the kernel says. Only root and the appliance's own user get this far.
	KindLocal Kind = "local"
	// KindUser: by a session.
	KindUser Kind = "user"
	// KindToken: by a token.
	KindToken Kind = "token"
)

// Principal is who asks.
type Principal struct {
	Kind Kind
	// Name of the user or token; for local "uid 0".
	Name string
	Role Role
}

// Local is whoever came by the unix socket; name is how it is written in records, such as "uid 0".
func Local(name string) Principal { return Principal{Kind: KindLocal, Name: name, Role: RoleAdmin} }

// String is what records say under "by". Names of users have no space, so no kind can be taken for another.
func (p Principal) String() string {
	if p.Kind == KindToken {
		return "token " + p.Name
	}
	return p.Name
}

type principalKey struct{}

// WithPrincipal returns a context that says who asks.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf says who asks; false when nobody knows.
func PrincipalOf(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}
