package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"firstlight/appliance/internal/fault"
)

// maxStreamLine bounds one line of a stream, in bytes: a row or an event with its fields.
const maxStreamLine = 1 << 20

// follow reads server-sent events, each of which carries one JSON value in one data line.
func follow[T any](ctx context.Context, c *Client, r request, each func(kind string, v T) error) error {
	resp, err := c.open(ctx, r)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxStreamLine)
	kind := ""
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "event":
			kind = value
		case "data":
			var v T
			if err := json.Unmarshal([]byte(value), &v); err != nil {
				return fault.New(fault.Internal, r.op, r.object, fmt.Errorf("read the appliance's answer: %w", err),
					"use the firstlight command of the same version as the appliance")
			}
			if err := each(kind, v); err != nil {
				return err
			}
		}
	}
	switch err := lines.Err(); {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return broken(r.op, r.object, err)
	}
	return broken(r.op, r.object, errors.New("the appliance ended the stream"))
}

// inProcess is a transport without a wire. The answer streams: it is there once the handler wrote its head.
type inProcess struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper. The handler ends when the request's context does, or when the body is closed.
func (t *inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	in.RequestURI = r.URL.RequestURI()
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/1.1", 1, 1
	if in.Body == nil {
		in.Body = http.NoBody
	}
	out, pipe := io.Pipe()
	w := &pipeWriter{header: http.Header{}, pipe: pipe, head: make(chan int, 1)}
	go func() {
		defer cancel()
		defer in.Body.Close()
		defer func() {
			if v := recover(); v != nil {
				w.end(fmt.Errorf("the appliance's handler broke: %v", v))
			}
		}()
		t.handler.ServeHTTP(w, in)
		w.end(nil)
	}()
	select {
	case code := <-w.head:
		return &http.Response{StatusCode: code, Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), Proto: "HTTP/1.1", ProtoMajor: 1,
			ProtoMinor: 1, Header: w.sent, Body: &pipeBody{out, cancel}, ContentLength: -1, Request: r}, nil
	case <-ctx.Done():
		out.CloseWithError(ctx.Err())
		return nil, context.Cause(ctx)
	}
}

type pipeBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close ends the handler too.
func (b *pipeBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// pipeWriter is used by the handler's goroutine alone; sent is handed over with the status.
type pipeWriter struct {
	header, sent http.Header
	pipe         *io.PipeWriter
	head         chan int
	wrote        bool
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(code int) {
	if w.wrote {
		return
	}
	w.wrote, w.sent = true, w.header.Clone()
	w.head <- code
}

func (w *pipeWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(bytes.Clone(b))
}

// Flush implements http.Flusher: nothing is held back.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }

func (w *pipeWriter) end(err error) {
	if err != nil && !w.wrote {
		w.WriteHeader(http.StatusInternalServerError)
	}
	w.WriteHeader(http.StatusOK)
	w.pipe.CloseWithError(err)
}
