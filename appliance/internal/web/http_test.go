package web_test

import (
	"net/http"
	"net/url"
	"strings"
)

// form sends a form as a browser on this page does.
func (c *client) form(method, path string, values map[string]string) *http.Response {
	c.t.Helper()
	v := url.Values{}
	for k, x := range values {
		v.Set(k, x)
	}
	if c.csrf != "" && v.Get("csrf") == "" {
		v.Set("csrf", c.csrf)
	}
	r, err := http.NewRequest(method, c.s.URL+path, strings.NewReader(v.Encode()))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", c.s.URL)
	return c.send(r)
}

func (c *client) send(r *http.Request) *http.Response {
	c.t.Helper()
	if c.cookie != "" {
		r.Header.Set("Cookie", c.cookie)
	}
	resp, err := c.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return resp
}
