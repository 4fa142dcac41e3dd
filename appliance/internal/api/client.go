package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
)

// callTimeout bounds every call but AddImage, which copies what may be large, and Cancel.
const callTimeout = time.Minute

// Client calls an appliance on this host. Its errors are fault.Errors.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of the socket at path; nothing is dialled yet.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return &Client{socket: path, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// AddMachine adds, adopts or enrols a machine.
func (c *Client) AddMachine(ctx context.Context, in AddMachine) (fleet.Machine, error) {
	op := "add machine"
	if in.Adopt {
		op = "adopt machine"
	}
	return call[fleet.Machine](ctx, c, op, in.Name, "POST", "/v1/machines", in)
}

// Machine shows a machine.
func (c *Client) Machine(ctx context.Context, name string) (fleet.Machine, error) {
	return call[fleet.Machine](ctx, c, "show machine", name, "GET", "/v1/machines/"+url.PathEscape(name), nil)
}

// Machines shows all machines.
func (c *Client) Machines(ctx context.Context) ([]fleet.Machine, error) {
	return call[[]fleet.Machine](ctx, c, "list machines", "", "GET", "/v1/machines", nil)
}

// Provision orders a workflow and returns the machine as it is then.
func (c *Client) Provision(ctx context.Context, name string, in Provision) (fleet.Machine, error) {
	return call[fleet.Machine](ctx, c, "provision", name, "POST", "/v1/machines/"+url.PathEscape(name)+"/provision", in)
}

// DryRun says what an order would do.
func (c *Client) DryRun(ctx context.Context, name string, in Provision) (executor.Preview, error) {
	return call[executor.Preview](ctx, c, "provision", name, "POST", "/v1/machines/"+url.PathEscape(name)+"/preview", in)
}

// Cancel ends a machine's workflow and returns the machine when that is over, or after a bound of some minutes.
func (c *Client) Cancel(ctx context.Context, name, reason string) (fleet.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, cancelTimeout+callTimeout)
	defer cancel()
	return send[fleet.Machine](ctx, c, "cancel", name, "POST", "/v1/machines/"+url.PathEscape(name)+"/cancel", Reason{reason})
}

// Protect marks a machine: no workflow touches its disks.
func (c *Client) Protect(ctx context.Context, name, reason string) (fleet.Machine, error) {
	return call[fleet.Machine](ctx, c, "protect machine", name, "POST", "/v1/machines/"+url.PathEscape(name)+"/protect", Reason{reason})
}

// Unprotect removes the mark.
func (c *Client) Unprotect(ctx context.Context, name string) (fleet.Machine, error) {
	return call[fleet.Machine](ctx, c, "unprotect machine", name, "POST", "/v1/machines/"+url.PathEscape(name)+"/unprotect", nil)
}

// StopAll freezes every workflow at its next safe point.
func (c *Client) StopAll(ctx context.Context, reason string) (Stopped, error) {
	return call[Stopped](ctx, c, "stop all", "", "POST", "/v1/stop", Reason{reason})
}

// ResumeAll lets everything go on.
func (c *Client) ResumeAll(ctx context.Context) (Stopped, error) {
	return call[Stopped](ctx, c, "resume all", "", "POST", "/v1/resume", nil)
}

// Resume lets a paused workflow go on.
func (c *Client) Resume(ctx context.Context, name string) (fleet.Machine, error) {
	return call[fleet.Machine](ctx, c, "resume", name, "POST", "/v1/machines/"+url.PathEscape(name)+"/resume", nil)
}

// AddImage adds the image in a directory of this host.
func (c *Client) AddImage(ctx context.Context, in AddImage) (images.Image, error) {
	return send[images.Image](ctx, c, "add image", in.Name, "POST", "/v1/images", in)
}

// Images lists the images.
func (c *Client) Images(ctx context.Context) ([]images.Image, error) {
	return call[[]images.Image](ctx, c, "list images", "", "GET", "/v1/images", nil)
}

// Events returns the newest events, oldest of them first; of all machines when machine is empty.
func (c *Client) Events(ctx context.Context, machine string, limit int) ([]fleet.Event, error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if machine != "" {
		q.Set("machine", machine)
	}
	return call[[]fleet.Event](ctx, c, "list events", machine, "GET", "/v1/events?"+q.Encode(), nil)
}

func call[T any](ctx context.Context, c *Client, op, object, method, path string, in any) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return send[T](ctx, c, op, object, method, path, in)
}

func send[T any](ctx context.Context, c *Client, op, object, method, path string, in any) (T, error) {
	var out T
	body, err := json.Marshal(in)
	if err != nil {
		return out, fault.Of(err, op, object)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://firstlight"+path, bytes.NewReader(body))
	if err != nil {
		return out, fault.New(fault.Usage, op, object, err, "give a plain name")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return out, c.unreachable(op, object, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return out, fault.New(fault.Unavailable, op, object, fmt.Errorf("the appliance's answer broke off: %w", err),
			"look at what was done with `firstlight machine list`, then try again")
	}
	if resp.StatusCode != http.StatusOK {
		return out, refused(op, object, resp.Status, data)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return out, fault.New(fault.Internal, op, object, fmt.Errorf("read the appliance's answer: %w", err),
			"use the firstlight command of the same version as the appliance")
	}
	return out, nil
}

func refused(op, object, status string, data []byte) error {
	var r refusal
	if err := json.Unmarshal(data, &r); err != nil || r.Error == nil {
		return fault.New(fault.Internal, op, object, fmt.Errorf("the appliance answered %s", status),
			"use the firstlight command of the same version as the appliance")
	}
	return r.Error
}

func (c *Client) unreachable(op, object string, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(err, os.ErrPermission):
		return fault.New(fault.Denied, op, object, err, "run the command as root or as the user that the appliance runs as")
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fault.New(fault.Unavailable, op, object, fmt.Errorf("no appliance listens on %s", c.socket),
			"start `firstlight serve`, or name its socket with --socket or FIRSTLIGHT_SOCKET")
	}
	return fault.New(fault.Unavailable, op, object, err, "see whether `firstlight serve` still runs, then try again")
}
