package api

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nobody is Debian's user without rights.
const nobody = 65534

// askAs sends one request over a connection that another user's thread made, as the kernel sees it. A thread whose uid was changed
// is never used again.
func askAs(t *testing.T, uid int, socket string) string {
	t.Helper()
	type connected struct {
		fd  int
		err error
	}
	done := make(chan connected)
	go func() {
		runtime.LockOSThread()
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				err = e
			} else {
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
			}
		}
		done <- connected{fd, err}
	}()
	c := <-done
	if c.err != nil {
		t.Fatal(c.err)
	}
	f := os.NewFile(uintptr(c.fd), socket)
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /v1/machines HTTP/1.1\r\nHost: firstlight\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(answer))
}

func TestAnotherUserIsRefusedInWords(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("reason: only root can be another user")
	}
	l := start(t, 0)
	if err := os.Chmod(filepath.Dir(l.socket), 0o755); err != nil {
		t.Fatal(err)
	}
	answer := askAs(t, nobody, l.socket)
	for _, want := range []string{"403 Forbidden", "uid 65534 is neither root nor", "run the command as root"} {
		if !strings.Contains(answer, want) {
			t.Errorf("got %q, want %q in it", answer, want)
		}
	}
	if strings.Contains(answer, `"macs"`) {
		t.Error("machines were told")
	}
}
