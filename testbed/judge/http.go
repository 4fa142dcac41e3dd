package judge

import (
	"bytes"
	"net/netip"
	"strconv"
	"time"
)

// maxLine bounds a request or status line, in bytes.
const maxLine = 4096

// HTTP is one request and its status. A body is not looked at.
type HTTP struct {
	Time         time.Time
	Client       netip.AddrPort
	Server       netip.AddrPort
	Method, Path string
	// Status is 0 until an answer was seen.
	Status int
}

// httpSegment takes the lines that start a segment: both sides send a request or an answer's head in one piece.
func (d *dissector) httpSegment(p packet) {
	line, _, _ := bytes.Cut(p.payload[:min(len(p.payload), maxLine)], []byte("\r\n"))
	words := bytes.SplitN(line, []byte(" "), 3)
	if len(words) < 2 {
		return
	}
	if p.flow.dst.Port() == d.httpPort {
		if len(words) != 3 || !bytes.HasPrefix(words[2], []byte("HTTP/1.")) || len(d.t.HTTP) >= maxFlows {
			return
		}
		h := &HTTP{Time: p.time, Client: p.flow.src, Server: p.flow.dst, Method: string(words[0]), Path: string(words[1])}
		d.http[p.flow] = h
		d.t.HTTP = append(d.t.HTTP, h)
		return
	}
	h := d.http[p.flow.back()]
	if h == nil || h.Status != 0 || !bytes.HasPrefix(words[0], []byte("HTTP/1.")) {
		return
	}
	if n, err := strconv.Atoi(string(words[1])); err == nil && n >= 200 && n <= 599 {
		h.Status = n
	}
}
