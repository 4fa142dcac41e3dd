package netlab

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"golang.org/x/sys/unix"
)

// Bounds of a capture.
const (
	snapLength   = 65536
	socketBuffer = 32 << 20 // bytes that the kernel may hold for us
	pollPause    = 100      // milliseconds; also the longest time a packet stays unwritten
)

// Capture writes every frame of machine tapIndex's tap, in both directions, to
// a pcap file, from the moment it returns until stop or Close; the file can be
// read while it grows. stop returns the first error of the capture; it may be
// called twice. The capture also ends when ctx does.
func (l *Lab) Capture(ctx context.Context, tapIndex int, pcapPath string) (stop func() error, err error) {
	if tapIndex < 0 || tapIndex >= l.cfg.Machines {
		return nil, fmt.Errorf("capture tap %d: the lab has %d", tapIndex, l.cfg.Machines)
	}
	fd := -1
	err = l.inside(Segment, func() (err error) {
		fd, err = packetSocket(l.Tap(tapIndex))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("capture %s: %w", l.Tap(tapIndex), err)
	}
	f, err := os.Create(pcapPath)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("capture %s: %w", l.Tap(tapIndex), err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- record(ctx, fd, f) }()
	stop = sync.OnceValue(func() error {
		cancel()
		if err := <-done; err != nil {
			return fmt.Errorf("capture %s: %w", l.Tap(tapIndex), err)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.Join(errors.New("capture: the lab is closed"), stop())
	}
	l.stops = append(l.stops, stop)
	return stop, nil
}

// packetSocket opens a packet(7) socket on an interface of this thread's
// namespace.
func packetSocket(name string) (int, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	// Protocol 0 receives nothing until bind names the interface, so that no
	// frame of another one slips in.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	for _, step := range []func() error{
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) },
		func() error { return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}) },
		func() error {
			return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
				&unix.PacketMreq{Ifindex: int32(ifi.Index), Type: unix.PACKET_MR_PROMISC})
		},
	} {
		if err := step(); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("packet socket on %s: %w", name, err)
		}
	}
	return fd, nil
}

// record copies frames from fd to f until ctx ends, and closes both. A frame is
// in the file at most pollPause after it passed.
func record(ctx context.Context, fd int, f *os.File) (err error) {
	defer unix.Close(fd)
	out := bufio.NewWriterSize(f, 1<<20)
	defer func() { err = errors.Join(err, out.Flush(), f.Close()) }()
	w := pcapgo.NewWriterNanos(out)
	if err := w.WriteFileHeader(snapLength, layers.LinkTypeEthernet); err != nil {
		return err
	}
	buf := make([]byte, snapLength)
	flushed := time.Now()
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC)
		now := time.Now()
		switch {
		case err == nil:
			ci := gopacket.CaptureInfo{Timestamp: now, Length: n, CaptureLength: min(n, len(buf))}
			if err := w.WritePacket(ci, buf[:ci.CaptureLength]); err != nil {
				return err
			}
		case errors.Is(err, unix.EAGAIN):
			if err := out.Flush(); err != nil {
				return err
			}
			// What arrived before the stop is written: the queue is empty here.
			if ctx.Err() != nil {
				return nil
			}
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, pollPause); err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("wait for a frame: %w", err)
			}
		case errors.Is(err, unix.EINTR):
		default:
			return fmt.Errorf("read a frame: %w", err)
		}
		if now.Sub(flushed) > pollPause*time.Millisecond {
			if err := out.Flush(); err != nil {
				return err
			}
			flushed = now
		}
	}
}
