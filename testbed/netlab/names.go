package netlab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// netnsDir is where iproute2 keeps the named namespaces.
const netnsDir = "/run/netns"

const maxName = 16

// ours matches the names that this package makes:
// fltb-<pid>-<start time of the pid, in ticks since boot>-<random>-<name>-<role>.
var ours = regexp.MustCompile(`^fltb-([0-9]{1,10})-([0-9]{1,20})-[0-9a-f]{8}-[A-Za-z0-9]{1,16}-(segment|dhcp|site|peer|bmc)$`)

var nameRule = regexp.MustCompile(`^[A-Za-z0-9]+$`)

func validName(s string) bool { return len(s) <= maxName && nameRule.MatchString(s) }

// ownPrefix begins the names of one lab of this process.
func ownPrefix(name string) (string, error) {
	start, err := startTime("/proc", os.Getpid())
	if err != nil {
		return "", err
	}
	var r [4]byte
	rand.Read(r[:])
	return fmt.Sprintf("fltb-%d-%s-%s-%s-", os.Getpid(), start, hex.EncodeToString(r[:]), name), nil
}

// startTime is field 22 of /proc/<pid>/stat (proc(5)): with the pid it names a
// process for good, until the next boot.
func startTime(proc string, pid int) (string, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", err
	}
	// The command name, field 2, may itself hold spaces and parentheses.
	end := bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[end+1:]))
	if end < 0 || len(fields) < 20 {
		return "", fmt.Errorf("process %d: stat has too few fields", pid)
	}
	return fields[19], nil
}

// ownerDead reports whether name is one of ours and its process is gone. A name
// that we did not make, or a doubt, is false.
func ownerDead(proc, name string) bool {
	m := ours.FindStringSubmatch(name)
	if m == nil {
		return false
	}
	pid, err := strconv.Atoi(m[1])
	if err != nil {
		return false
	}
	start, err := startTime(proc, pid)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return true
	}
	return err == nil && start != m[2]
}

// sweep removes the namespaces of processes that are gone.
func sweep(ctx context.Context) error {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if ownerDead("/proc", e.Name()) {
			errs = append(errs, remove(ctx, e.Name()))
		}
	}
	return errors.Join(errs...)
}

// remove ends the processes inside one of our namespaces and deletes it. It
// refuses a name that this package did not make; a namespace that is already
// gone is no error.
func remove(ctx context.Context, ns string) error {
	if !ours.MatchString(ns) {
		return fmt.Errorf("remove namespace %q: not made by this package", ns)
	}
	if _, err := os.Stat(filepath.Join(netnsDir, ns)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	// A file that is no namespace (left by a boot that ended) has no processes.
	if out, err := run(ctx, "ip", "netns", "pids", ns); err == nil {
		for _, f := range strings.Fields(out) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					return fmt.Errorf("remove namespace %s: end process %d: %w", ns, pid, err)
				}
			}
		}
	}
	if _, err := run(ctx, "ip", "netns", "del", ns); err != nil {
		if _, still := os.Stat(filepath.Join(netnsDir, ns)); errors.Is(still, os.ErrNotExist) {
			return nil
		}
		return err
	}
	return nil
}
