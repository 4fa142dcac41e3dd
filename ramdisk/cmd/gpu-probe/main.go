//go:build cgo

// Command gpu-probe asks NVIDIA's management library about the machine's GPUs and prints what it says as one JSON object.
//
// It is a program of its own, dynamically linked, because that library is loaded at run time and may be missing, old or broken: a
// call of a missing symbol ends the process, and the static machine-agent must not share that fate. Every call is looked up first.
// It exits 0 whenever it printed its object; "state" says whether the library could be used.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func main() {
	if err := run(os.Args, os.Stdout, nvml.New()); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-probe:", err)
		os.Exit(1)
	}
}

// maxGPUs bounds the list.
const maxGPUs = 256

// report and gpu have the same JSON as ramdisk/internal/diag's Probe and GPU, which reads them.
type report struct {
	State  string `json:"state"`
	Error  string `json:"error,omitempty"`
	Driver string `json:"driver,omitempty"`
	Count  int    `json:"count"`
	GPUs   []gpu  `json:"gpus"`
}

type gpu struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	UUID  string `json:"uuid"`
	Error string `json:"error,omitempty"`
	ECC   *ecc   `json:"ecc,omitempty"`
}

type ecc struct {
	Enabled       bool    `json:"enabled"`
	Corrected     *uint64 `json:"corrected,omitempty"`
	Uncorrectable *uint64 `json:"uncorrectable,omitempty"`
}

func run(args []string, stdout io.Writer, lib nvml.Interface) error {
	if len(args) > 1 {
		return fmt.Errorf("unexpected argument %q", args[1])
	}
	return json.NewEncoder(stdout).Encode(probe(lib))
}

func probe(lib nvml.Interface) report {
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return report{State: "no-library", Error: "libnvidia-ml.so.1 is not in this system"}
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return report{State: "no-driver", Error: "the NVIDIA kernel driver is not loaded"}
	default:
		return report{State: "error", Error: fmt.Sprintf("NVML did not start (code %d)", int(ret))}
	}
	has := func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil }
	defer func() {
		if has("nvmlShutdown") {
			lib.Shutdown()
		}
	}()
	r := report{State: "ok"}
	if has("nvmlSystemGetDriverVersion") {
		if v, ret := lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
			r.Driver = v
		}
	}
	if !has("nvmlDeviceGetCount_v2") || !has("nvmlDeviceGetHandleByIndex_v2") {
		return report{State: "error", Driver: r.Driver, Error: "the NVIDIA library is too old to list GPUs"}
	}
	n, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return report{State: "error", Driver: r.Driver, Error: fmt.Sprintf("count GPUs: code %d", int(ret))}
	}
	r.Count = n
	for i := range min(n, maxGPUs) {
		r.GPUs = append(r.GPUs, one(lib, has, i))
	}
	return r
}

func one(lib nvml.Interface, has func(string) bool, i int) gpu {
	g := gpu{Index: i}
	d, ret := lib.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		g.Error = fmt.Sprintf("it does not answer (code %d)", int(ret))
		return g
	}
	if has("nvmlDeviceGetName") {
		g.Name, _ = d.GetName()
	}
	if has("nvmlDeviceGetUUID") {
		if g.UUID, ret = d.GetUUID(); ret != nvml.SUCCESS {
			g.UUID, g.Error = "", fmt.Sprintf("its UUID cannot be read (code %d)", int(ret))
		}
	}
	if !has("nvmlDeviceGetEccMode") {
		return g
	}
	mode, _, ret := d.GetEccMode()
	if ret != nvml.SUCCESS {
		return g
	}
	g.ECC = &ecc{Enabled: mode == nvml.FEATURE_ENABLED}
	if g.ECC.Enabled && has("nvmlDeviceGetTotalEccErrors") {
		if v, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
			g.ECC.Corrected = &v
		}
		if v, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
			g.ECC.Uncorrectable = &v
		}
	}
	return g
}
