package api

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"strconv"

	"firstlight/appliance/internal/images"
)

// AddImage adds the image in a directory of the appliance's host.
func (c *Client) AddImage(ctx context.Context, in AddImage) (images.Image, error) {
	return send[images.Image](ctx, c, request{op: "add image", object: in.Name, method: "POST", path: "/v1/images", in: in})
}

// Images lists the images.
func (c *Client) Images(ctx context.Context) ([]images.Image, error) {
	return call[[]images.Image](ctx, c, request{op: "list images", method: "GET", path: "/v1/images"})
}

// RemoveImage forgets an image that no open workflow uses.
func (c *Client) RemoveImage(ctx context.Context, name string) (Removed, error) {
	return call[Removed](ctx, c, request{op: "remove image", object: name, method: "DELETE", path: "/v1/images/" + url.PathEscape(name)})
}

// BeginUpload begins to send an image, or goes on with it.
func (c *Client) BeginUpload(ctx context.Context, in BeginUpload) (Upload, error) {
	return call[Upload](ctx, c, request{op: "add image", object: in.Name, method: "POST", path: "/v1/uploads", in: in})
}

// Upload says how far an upload is.
func (c *Client) Upload(ctx context.Context, id string) (Upload, error) {
	return call[Upload](ctx, c, request{op: "add image", object: id, method: "GET", path: "/v1/uploads/" + url.PathEscape(id)})
}

// PutBlob sends one of the blobs that are missing; size is its size in bytes.
func (c *Client) PutBlob(ctx context.Context, id, sha256 string, size int64, blob io.Reader) (Upload, error) {
	return send[Upload](ctx, c, request{op: "add image", object: id, method: "PUT",
		path: "/v1/uploads/" + url.PathEscape(id) + "/blobs/" + url.PathEscape(sha256), raw: blob, size: size})
}

// FinishUpload verifies an upload as a whole and makes it an image.
func (c *Client) FinishUpload(ctx context.Context, id string) (images.Image, error) {
	return send[images.Image](ctx, c, request{op: "add image", object: id, method: "POST", path: "/v1/uploads/" + url.PathEscape(id) + "/finish"})
}

// DropUpload forgets an upload and its blobs that nothing else needs.
func (c *Client) DropUpload(ctx context.Context, id string) (Removed, error) {
	return call[Removed](ctx, c, request{op: "drop upload", object: id, method: "DELETE", path: "/v1/uploads/" + url.PathEscape(id)})
}

// Health says what the doctor finds.
func (c *Client) Health(ctx context.Context) (Health, error) {
	return call[Health](ctx, c, request{op: "check health", method: "GET", path: "/v1/health"})
}

// Users lists the accounts.
func (c *Client) Users(ctx context.Context) ([]User, error) {
	return call[[]User](ctx, c, request{op: "list users", method: "GET", path: "/v1/users"})
}

// AddUser makes an account.
func (c *Client) AddUser(ctx context.Context, in AddUser) (User, error) {
	return call[User](ctx, c, request{op: "add user", object: in.Name, method: "POST", path: "/v1/users", in: in})
}

// SetUser changes an account's role or password, which ends its sessions.
func (c *Client) SetUser(ctx context.Context, name string, in SetUser) (User, error) {
	return call[User](ctx, c, request{op: "set user", object: name, method: "PATCH", path: "/v1/users/" + url.PathEscape(name), in: in})
}

// RemoveUser removes an account and ends its sessions.
func (c *Client) RemoveUser(ctx context.Context, name string) (Removed, error) {
	return call[Removed](ctx, c, request{op: "remove user", object: name, method: "DELETE", path: "/v1/users/" + url.PathEscape(name)})
}

// Tokens lists the API's tokens, without their values.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	return call[[]Token](ctx, c, request{op: "list tokens", method: "GET", path: "/v1/tokens"})
}

// MintToken makes a token; its value is in this answer and nowhere else.
func (c *Client) MintToken(ctx context.Context, in MintToken) (MintedToken, error) {
	return call[MintedToken](ctx, c, request{op: "make token", object: in.Name, method: "POST", path: "/v1/tokens", in: in})
}

// RevokeToken ends a token.
func (c *Client) RevokeToken(ctx context.Context, name string) (Removed, error) {
	return call[Removed](ctx, c, request{op: "revoke token", object: name, method: "DELETE", path: "/v1/tokens/" + url.PathEscape(name)})
}

// Audit shows who did what, newest first. before is AuditPage.Before of the page before, zero for the newest.
func (c *Client) Audit(ctx context.Context, limit int, before uint64) (AuditPage, error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if before != 0 {
		q.Set("before", strconv.FormatUint(before, 10))
	}
	return call[AuditPage](ctx, c, request{op: "show audit log", method: "GET", path: "/v1/audit?" + q.Encode()})
}

// MintJoin makes a one-time token with which a site agent joins.
func (c *Client) MintJoin(ctx context.Context, in MintJoin) (JoinToken, error) {
	return call[JoinToken](ctx, c, request{op: "make join token", method: "POST", path: "/v1/join-tokens", in: in})
}

// OpenAPI is the description of the API that this appliance serves.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	return call[json.RawMessage](ctx, c, request{op: "describe the API", method: "GET", path: "/v1/openapi.json"})
}
