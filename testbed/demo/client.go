package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"firstlight/testbed/judge"
)

// Bounds of asking the appliance.
const (
	askLimit  = 10 * time.Second
	maxAnswer = 8 << 20
	// maxUnanswered is how many questions in a row may fail before the demo gives up.
	maxUnanswered = 10
)

// client asks the appliance over its socket.
type client struct{ http *http.Client }

func newClient(socket string) *client {
	return &client{&http.Client{Timeout: askLimit, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}}
}

// machine is a machine as the API gives it, as far as the demo shows it.
type machine struct {
	judge.Record
	Row row `json:"-"`
}

// row is a machine in the API's own words.
type row struct {
	Name  string    `json:"name"`
	Line  string    `json:"line"`
	Since time.Time `json:"since"`
	// Percent and LeftS are nil where the API does not know.
	Percent *int   `json:"percent"`
	LeftS   *int64 `json:"left_s"`
	Next    string `json:"next"`
}

// page is the part of the API's page of machines that is filled by the view that was asked for.
type page struct {
	Rows     []row     `json:"rows"`
	Machines []machine `json:"machines"`
}

// machines lists all machines, each with its row.
func (c *client) machines(ctx context.Context) ([]machine, error) {
	full, err := c.page(ctx, "full")
	if err != nil {
		return nil, err
	}
	rows, err := c.page(ctx, "row")
	if err != nil {
		return nil, err
	}
	for i := range full.Machines {
		m := &full.Machines[i]
		if at := slices.IndexFunc(rows.Rows, func(r row) bool { return r.Name == m.Name }); at >= 0 {
			m.Row = rows.Rows[at]
		}
	}
	return full.Machines, nil
}

func (c *client) page(ctx context.Context, view string) (page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://appliance/v1/machines?view="+view, nil)
	if err != nil {
		return page{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return page{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return page{}, fmt.Errorf("list machines: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return page{}, fmt.Errorf("list machines: %s: %.300s", resp.Status, body)
	}
	var p page
	if err := json.Unmarshal(body, &p); err != nil {
		return page{}, fmt.Errorf("list machines: %w", err)
	}
	return p, nil
}
