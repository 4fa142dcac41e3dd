package scenario

import (
	"context"
	"io"
	"net"
	"sync"
)

// forward passes every connection of ln on to addr, reached by dial, until ln is closed.
func forward(ctx context.Context, ln net.Listener, dial func(ctx context.Context, network, addr string) (net.Conn, error), addr string) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			up, err := dial(ctx, "tcp", addr)
			if err != nil {
				return
			}
			defer up.Close()
			join(c, up)
		}()
	}
}

// join copies both ways until one side ends, then ends the other.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	for _, p := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			io.Copy(p[0], p[1])
			a.Close()
			b.Close()
		})
	}
	both.Wait()
}
