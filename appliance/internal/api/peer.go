package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Peer is who is on the other side of the socket, as the kernel saw it connect (SO_PEERCRED, unix(7)).
type Peer struct {
	UID uint32
	PID int32
}

func (p Peer) String() string { return fmt.Sprintf("uid %d", p.UID) }

type peerKey struct{}

// peerOf asks the kernel. A connection that is no unix socket has no peer.
func peerOf(c net.Conn) (Peer, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, errors.New("not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if credErr != nil {
		return Peer{}, credErr
	}
	return Peer{UID: cred.Uid, PID: cred.Pid}, nil
}

// withPeer is http.Server.ConnContext: it keeps the peer beside the connection; without one nothing is kept.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	p, err := peerOf(c)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, p)
}

// Listen makes the socket at path. A socket that nobody serves any more is replaced, one that somebody serves is an error.
// Everybody may connect, so that who may not is told in words.
func Listen(path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, errors.New("something that is no socket is there")
	default:
		if c, err := net.Dial("unix", path); err == nil {
			return nil, errors.Join(errors.New("another process serves it"), c.Close())
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
