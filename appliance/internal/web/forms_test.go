package web_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/web/webtest"
)

var ticked = regexp.MustCompile(`name="disk" value="([^"]*)" checked([^>]*)>`)

// save sends the change form as a browser would, with everything that it shows, and returns what the API was asked.
func (c *client) save(t *testing.T, name string, values url.Values) (int, api.SetMachine) {
	t.Helper()
	path := "/machines/" + name + "/change"
	for k, v := range c.question(path) {
		values.Set(k, v)
	}
	m, _ := c.s.fleet.Get(name)
	for k, v := range map[string]string{"csrf": c.csrf, "kind": "change", "place": m.Row.Place, "macs": strings.Join(m.MACs, "\n"), "uuid": m.UUID, "bmc_url": m.BMC.URL, "bmc_user": m.BMC.User} {
		if !values.Has(k) {
			values.Set(k, v)
		}
	}
	if !values.Has("disk") {
		for _, m := range ticked.FindAllStringSubmatch(body(t, c.request("GET", path, nil)), -1) {
			if strings.Contains(m[2], "disabled") {
				continue // a browser leaves it out
			}
			values.Add("disk", m[1])
		}
	}
	before := len(c.s.fleet.Orders())
	r, err := http.NewRequest("POST", c.s.URL+path, strings.NewReader(values.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", c.s.URL)
	resp := c.send(r)
	var in api.SetMachine
	if orders := c.s.fleet.Orders()[before:]; len(orders) == 1 {
		if err := json.Unmarshal([]byte(orders[0].Body), &in); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, in
}

// Saving a place changes the place alone: which disk gets the system, and which may be wiped, stays what a person said.
func TestChangeSendsWhatWasChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "omar")
	for name, change := range map[string]func(*webtest.Machine){
		"as reported":         func(*webtest.Machine) {},
		"other way round":     func(m *webtest.Machine) { m.DiskSerials = []string{m.DiskSerials[1], m.DiskSerials[0]} },
		"one is not reported": func(m *webtest.Machine) { m.DiskSerials = []string{"LOST0001", m.DiskSerials[0]} },
		"one is excluded now": func(m *webtest.Machine) { m.DiskSerials = append(m.DiskSerials, "AA00000000000489") },
	} {
		m := webtest.Machine10("r15u01", 80, time.Now())
		change(&m)
		s.fleet.Set(m)
		more := url.Values{"place": {"rack 99"}}
		if m.DiskSerials[0] == "LOST0001" {
			more.Set("disks", "LOST0001")
		}
		code, in := c.save(t, "r15u01", more)
		if code != http.StatusSeeOther || in.Place == nil || *in.Place != "rack 99" {
			t.Errorf("%s: %d, %+v, want the place", name, code, in)
		}
		if in.DiskSerials != nil || in.MACs != nil || in.UUID != nil || in.BMCURL != nil || in.BMCUser != nil {
			t.Errorf("%s: more than the place is sent, disks %v", name, in.DiskSerials)
		}
	}
	m := webtest.Machine10("r15u01", 80, time.Now())
	first, second := m.DiskSerials[0], m.DiskSerials[1]
	m.DiskSerials = []string{second}
	s.fleet.Set(m)
	page := body(t, c.request("GET", "/machines/r15u01/change", nil))
	if strings.Index(page, `value="`+second) > strings.Index(page, `value="`+first) {
		t.Error("the disk that gets the system does not stand first")
	}
	if _, in := c.save(t, "r15u01", url.Values{"disk": {second, first}}); in.DiskSerials == nil || strings.Join(*in.DiskSerials, " ") != second+" "+first {
		t.Errorf("a disk more: %v", in.DiskSerials)
	}
	m.Hardware, m.DiskSerials = nil, []string{first, second}
	s.fleet.Set(m)
	if _, in := c.save(t, "r15u01", url.Values{"disk": nil, "disks": {second + "\n" + first}}); in.DiskSerials == nil || (*in.DiskSerials)[0] != second {
		t.Errorf("typed in another order: %v", in.DiskSerials)
	}
}
