package site

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"google.golang.org/protobuf/proto"

	"firstlight/gateway-client/ident"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/session"
	"firstlight/ipxe"
	"firstlight/site/internal/discovery"
	"firstlight/site/internal/lease"
	"firstlight/site/internal/proxydhcp"
)

const (
	// maxMACs and maxKernelArgs bound one lease.
	maxMACs, maxKernelArgs = 32, 32
	// initrdAlign is what the RAM disk's size must divide by: the kernel looks for the next archive there.
	initrdAlign = 4
)

// leaseCommands runs boot.prepareRamdisk and boot.cleanUp.
type leaseCommands struct {
	site    discovery.Site
	leases  *lease.Table
	ramdisk *os.Root
}

func (c *leaseCommands) prepare(_ context.Context, call *session.Call) (proto.Message, error) {
	var p sitev1.PrepareRAMDisk
	if err := proto.Unmarshal(call.Payload, &p); err != nil {
		return nil, fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
	}
	l, err := c.lease(&p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
	}
	if err := c.checkRAMDisk(); err != nil {
		return nil, fmt.Errorf("open boot lease %s: %w", l.ID, err)
	}
	if err := c.leases.Prepare(l); err != nil {
		return nil, err
	}
	return &sitev1.PrepareRAMDiskResult{LeaseId: l.ID}, nil
}

// lease reads a payload; what it returns can become a script.
func (c *leaseCommands) lease(p *sitev1.PrepareRAMDisk) (lease.Lease, error) {
	l := lease.Lease{ID: p.LeaseId, NodeID: p.NodeId, WorkflowID: p.WorkflowId, Machine: p.MachineName, Arch: p.ClientArchitecture, KernelArgs: p.KernelArgs}
	for _, n := range []string{l.ID, l.NodeID, l.WorkflowID} {
		if !ident.Valid(n) {
			return l, fmt.Errorf("lease, node or workflow id %q is not a name", n)
		}
	}
	if err := ipxe.CheckText("machine name", l.Machine); err != nil {
		return l, err
	}
	if len(p.Macs) == 0 || len(p.Macs) > maxMACs || len(p.KernelArgs) > maxKernelArgs {
		return l, fmt.Errorf("%d MACs and %d kernel arguments: want 1 to %d, and at most %d", len(p.Macs), len(p.KernelArgs), maxMACs, maxKernelArgs)
	}
	for _, m := range p.Macs {
		mac, err := lease.ParseMAC(m)
		if err != nil {
			return l, err
		}
		if !slices.Contains(l.MACs, mac) {
			l.MACs = append(l.MACs, mac)
		}
	}
	if _, ok := proxydhcp.Pins[l.Arch]; l.Arch != "" && !ok {
		return l, fmt.Errorf("architecture %q: want bios, x64, ia32, arm32 or arm64", l.Arch)
	}
	if p.Expires == nil || !p.Expires.IsValid() {
		return l, errors.New("lease has no end")
	}
	l.Expires = p.Expires.AsTime()
	var err error
	if l.Anchors, err = anchors(c.site, p.Anchors); err != nil {
		return l, err
	}
	_, err = c.site.Script(l)
	return l, err
}

func (c *leaseCommands) checkRAMDisk() error {
	for _, name := range []string{discovery.KernelFile, discovery.RAMDiskFile} {
		info, err := c.ramdisk.Stat(name)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", name)
		}
		if name == discovery.RAMDiskFile && info.Size()%initrdAlign != 0 {
			return fmt.Errorf("%s is %d bytes: want a multiple of %d, or the kernel does not find the overlays after it", name, info.Size(), initrdAlign)
		}
	}
	return nil
}

func (c *leaseCommands) cleanUp(_ context.Context, call *session.Call) (proto.Message, error) {
	var p sitev1.CleanUpBoot
	if err := proto.Unmarshal(call.Payload, &p); err != nil {
		return nil, fmt.Errorf("%w: %w", session.ErrInvalidPayload, err)
	}
	state, ok := ends[p.Reason]
	if !ok || p.LeaseId == "" {
		return nil, fmt.Errorf("%w: close lease %q for %s", session.ErrInvalidPayload, p.LeaseId, p.Reason)
	}
	if err := c.leases.Close(p.LeaseId, state); err != nil {
		return nil, err
	}
	return &sitev1.CleanUpBootResult{}, nil
}

var ends = map[sitev1.CleanUpBoot_Reason]lease.State{
	sitev1.CleanUpBoot_REASON_CONSUMED:  lease.Consumed,
	sitev1.CleanUpBoot_REASON_CANCELLED: lease.Cancelled,
	sitev1.CleanUpBoot_REASON_EXPIRED:   lease.Expired,
}
