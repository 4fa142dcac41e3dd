// Package netiftest gives a test a network of its own. It is for the site agent's tests.
package netiftest

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const mark = "FIRSTLIGHT_TEST_IN_NAMESPACE"

// InNamespace runs the calling test again, alone, in a network namespace of its own after the given shell commands. It returns
// true there, and false in the outer process once the inner run has ended. Without root or the ip command the test is skipped.
func InNamespace(t *testing.T, commands string) bool {
	t.Helper()
	if os.Getenv(mark) == t.Name() {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skipf("no ip command: %v", err)
	}
	c := exec.CommandContext(t.Context(), "sh", "-ec", "ip link set lo up\n"+commands+"\nexec \"$0\" \"$@\"", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), mark+"="+t.Name())
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := c.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("in its namespace: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("in its namespace: %s", out)
	}
	return false
}
