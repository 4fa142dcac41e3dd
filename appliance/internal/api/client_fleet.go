package api

import (
	"context"
	"net/url"
	"strconv"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
)

func machinePath(name, rest string) string { return "/v1/machines/" + url.PathEscape(name) + rest }

// Page shows one page of machines.
func (c *Client) Page(ctx context.Context, q Query) (MachinePage, error) {
	v := url.Values{}
	for key, value := range map[string]string{"q": q.Q, "state": q.State, "view": q.View, "sort": q.Sort, "cursor": q.Cursor} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return call[MachinePage](ctx, c, request{op: "list machines", method: "GET", path: "/v1/machines?" + v.Encode()})
}

// Machines shows all machines whole, by name, page by page.
func (c *Client) Machines(ctx context.Context) ([]fleet.Machine, error) { return c.machines(ctx, "") }

func (c *Client) machines(ctx context.Context, state string) ([]fleet.Machine, error) {
	all := []fleet.Machine{}
	q := Query{View: ViewFull, Limit: MaxFull, State: state}
	for {
		p, err := c.Page(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, p.Machines...)
		if p.Next == "" {
			return all, nil
		}
		q.Cursor = p.Next
	}
}

// Discovered shows the machines that booted here and are nobody's yet.
func (c *Client) Discovered(ctx context.Context) ([]fleet.Machine, error) {
	return call[[]fleet.Machine](ctx, c, request{op: "list discovered machines", method: "GET", path: "/v1/discovered"})
}

// Machine shows a machine.
func (c *Client) Machine(ctx context.Context, name string) (Machine, error) {
	return call[Machine](ctx, c, request{op: "show machine", object: name, method: "GET", path: machinePath(name, "")})
}

// AddMachine adds, adopts or enrols a machine.
func (c *Client) AddMachine(ctx context.Context, in AddMachine) (Machine, error) {
	op := "add machine"
	if in.Adopt {
		op = "adopt machine"
	}
	return call[Machine](ctx, c, request{op: op, object: in.Name, method: "POST", path: "/v1/machines", in: in})
}

func (c *Client) act(ctx context.Context, op, name, verb string, in any) (Machine, error) {
	return call[Machine](ctx, c, request{op: op, object: name, method: "POST", path: machinePath(name, "/"+verb), in: in})
}

// SetMachine changes what a person said about a machine.
func (c *Client) SetMachine(ctx context.Context, name string, in SetMachine) (Machine, error) {
	return call[Machine](ctx, c, request{op: "set machine", object: name, method: "PATCH", path: machinePath(name, ""), in: in})
}

// RemoveMachine forgets a machine.
func (c *Client) RemoveMachine(ctx context.Context, name, version string) (Removed, error) {
	path := machinePath(name, "")
	if version != "" {
		path += "?" + url.Values{"version": {version}}.Encode()
	}
	return call[Removed](ctx, c, request{op: "remove machine", object: name, method: "DELETE", path: path})
}

// Adopt takes over a machine that runs.
func (c *Client) Adopt(ctx context.Context, name string, in Adopt) (Machine, error) {
	return c.act(ctx, "adopt machine", name, "adopt", in)
}

// Provision orders a workflow and returns the machine as it is then.
func (c *Client) Provision(ctx context.Context, name string, in Provision) (Machine, error) {
	return c.act(ctx, "provision", name, "provision", in)
}

// Retry orders the newest workflow's image again and returns the machine as it is then.
func (c *Client) Retry(ctx context.Context, name string, in Retry) (Machine, error) {
	return c.act(ctx, "retry", name, "retry", in)
}

// DryRun says what an order would do.
func (c *Client) DryRun(ctx context.Context, name string, in Provision) (executor.Preview, error) {
	return call[executor.Preview](ctx, c, request{op: "provision", object: name, method: "POST", path: machinePath(name, "/preview"), in: in})
}

// Cancel ends a machine's workflow and returns the machine when that is over, or after a bound of some minutes.
func (c *Client) Cancel(ctx context.Context, name string, in Reason) (Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, cancelTimeout+callTimeout)
	defer cancel()
	return send[Machine](ctx, c, request{op: "cancel", object: name, method: "POST", path: machinePath(name, "/cancel"), in: in})
}

// Resume lets a paused workflow go on.
func (c *Client) Resume(ctx context.Context, name string, in Act) (Machine, error) {
	return c.act(ctx, "resume", name, "resume", in)
}

// Protect marks a machine: no workflow touches its disks.
func (c *Client) Protect(ctx context.Context, name string, in Reason) (Machine, error) {
	return c.act(ctx, "protect machine", name, "protect", in)
}

// Unprotect removes the mark.
func (c *Client) Unprotect(ctx context.Context, name string, in Act) (Machine, error) {
	return c.act(ctx, "unprotect machine", name, "unprotect", in)
}

// StopAll freezes every workflow at its next safe point.
func (c *Client) StopAll(ctx context.Context, reason string) (Stopped, error) {
	return call[Stopped](ctx, c, request{op: "stop all", method: "POST", path: "/v1/stop", in: Reason{Reason: reason}})
}

// ResumeAll lets everything go on.
func (c *Client) ResumeAll(ctx context.Context) (Stopped, error) {
	return call[Stopped](ctx, c, request{op: "resume all", method: "POST", path: "/v1/resume"})
}

// Events returns the newest events, oldest of them first; of all machines when machine is empty.
func (c *Client) Events(ctx context.Context, machine string, limit int) ([]fleet.Event, error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if machine != "" {
		q.Set("machine", machine)
	}
	return call[[]fleet.Event](ctx, c, request{op: "list events", object: machine, method: "GET", path: "/v1/events?" + q.Encode()})
}

// Timeline shows what happened to a machine, newest first. before is TimelinePage.Before of the page before, empty for the newest.
func (c *Client) Timeline(ctx context.Context, name string, limit int, before string) (TimelinePage, error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if before != "" {
		q.Set("before", before)
	}
	return call[TimelinePage](ctx, c, request{op: "show timeline", object: name, method: "GET", path: machinePath(name, "/timeline?") + q.Encode()})
}

// Log shows the newest lines of what a machine's agents said, oldest of them first.
func (c *Client) Log(ctx context.Context, name string, limit int) ([]LogLine, error) {
	return call[[]LogLine](ctx, c, request{op: "show log", object: name, method: "GET", path: machinePath(name, "/log?limit=") + strconv.Itoa(limit)})
}

// FollowLog gives the newest lines and then every further one to each, until ctx ends (nil), each returns an error (that one) or
// the stream breaks.
func (c *Client) FollowLog(ctx context.Context, name string, limit int, each func(LogLine) error) error {
	r := request{op: "follow log", object: name, method: "GET", path: machinePath(name, "/log?follow=true&limit=") + strconv.Itoa(limit)}
	return follow(ctx, c, r, func(_ string, line LogLine) error { return each(line) })
}

// Watch gives every change to each, until ctx ends (nil), each returns an error (that one) or the stream breaks: then watch again
// from the last change's ID.
func (c *Client) Watch(ctx context.Context, from WatchFrom, each func(Change) error) error {
	r := request{op: "watch machines", object: from.Machine, method: "GET", path: "/v1/watch"}
	if from.Machine != "" {
		r.path += "?" + url.Values{"machine": {from.Machine}}.Encode()
	}
	if from.After != 0 {
		r.after = strconv.FormatInt(from.After, 10)
	}
	return follow(ctx, c, r, func(_ string, x Change) error { return each(x) })
}

// broken words the end of a stream.
func broken(op, object string, cause error) error {
	return fault.New(fault.Unavailable, op, object, cause, "see whether `firstlight serve` still runs, then try again")
}
