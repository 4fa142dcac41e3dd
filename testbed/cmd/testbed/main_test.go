package main

import (
	"net"
	"os"
	"testing"
)

// A connection that breaks under a write is no reason to end a run; an output that nobody reads is.
func TestOnlyAClosedOutputEndsTheProgram(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, out, _, stop := endings(w, w)
	defer stop()
	for range 100 {
		breakConnection(t)
	}
	if _, err := out.Write([]byte("line\n")); err != nil || ctx.Err() != nil {
		t.Fatalf("after broken connections: write says %v, the program's context %v; want it to go on", err, ctx.Err())
	}
	r.Close()
	if _, err := out.Write([]byte("line\n")); err == nil {
		t.Fatal("a write to a closed pipe says nothing")
	}
	<-ctx.Done()
}

// breakConnection writes to a peer that is gone until the system says so.
func breakConnection(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", "@"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	peer.Close()
	if _, err := c.Write([]byte("x")); err == nil {
		t.Fatal("a write to a peer that is gone says nothing")
	}
}
