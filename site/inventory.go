package site

import (
	"context"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/site/internal/netif"
)

// host is the machine that the site agent runs on.
type host struct {
	// dmi is /sys/class/dmi/id; files that are missing or not readable say nothing.
	dmi fs.FS
	nic netif.Info
}

// maxDMI bounds one value of the firmware's tables in bytes.
const maxDMI = 256

func (h host) read(name string) string {
	b, err := fs.ReadFile(h.dmi, name)
	if err != nil || len(b) > maxDMI {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "")
}

func (h host) claims() *commonv1.HardwareClaims {
	c := &commonv1.HardwareClaims{
		SystemUuid: strings.ToLower(h.read("product_uuid")), SystemSerial: h.read("product_serial"),
		Manufacturer: h.read("sys_vendor"), Product: h.read("product_name"),
	}
	if h.nic.MAC != "" {
		c.Macs = []string{h.nic.MAC}
	}
	return c
}

// inventory returns the sections "system" and "nics" in their canonical encoding.
func (h host) inventory(context.Context) (map[string][]byte, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	sections := map[string]proto.Message{
		"system": &agentv1.SystemSection{
			Manufacturer: h.read("sys_vendor"), Product: h.read("product_name"), Serial: h.read("product_serial"),
			Uuid: strings.ToLower(h.read("product_uuid")), FirmwareVendor: h.read("bios_vendor"), FirmwareVersion: h.read("bios_version"),
			KernelRelease: unix.ByteSliceToString(u.Release[:]),
		},
		"nics": &agentv1.NICsSection{Nics: []*agentv1.NIC{{Name: h.nic.Name, Mac: h.nic.MAC, Link: true}}},
	}
	out := make(map[string][]byte, len(sections))
	for name, m := range sections {
		b, err := (proto.MarshalOptions{Deterministic: true}).Marshal(m)
		if err != nil {
			return nil, err
		}
		out[name] = b
	}
	return out, nil
}
