//go:build cgo

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// library is NVML with the given symbols. A method of the mock that is not set panics, as a call of a missing symbol kills the
// process: what is not looked up first fails the test.
func library(init nvml.Return, symbols ...string) *mock.Interface {
	gpu := &mock.Device{
		GetNameFunc: func() (string, nvml.Return) { return "H200", nvml.SUCCESS },
		GetUUIDFunc: func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetEccModeFunc: func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
			return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
		},
		GetTotalEccErrorsFunc: func(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
			return uint64(kind), nvml.SUCCESS
		},
	}
	ext := &mock.ExtendedInterface{LookupSymbolFunc: func(s string) error {
		if init != nvml.SUCCESS || !slices.Contains(symbols, s) {
			return errors.New("undefined symbol")
		}
		return nil
	}}
	m := &mock.Interface{InitFunc: func() nvml.Return { return init }, ExtensionsFunc: func() nvml.ExtendedInterface { return ext }}
	if init != nvml.SUCCESS {
		return m
	}
	if slices.Contains(symbols, "nvmlShutdown") {
		m.ShutdownFunc = func() nvml.Return { return nvml.SUCCESS }
	}
	if slices.Contains(symbols, "nvmlDeviceGetCount_v2") {
		m.DeviceGetCountFunc = func() (int, nvml.Return) { return 2, nvml.SUCCESS }
	}
	if slices.Contains(symbols, "nvmlDeviceGetHandleByIndex_v2") {
		m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
			if i == 1 {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return gpu, nvml.SUCCESS
		}
	}
	return m
}

func probed(t *testing.T, m *mock.Interface) report {
	t.Helper()
	var out bytes.Buffer
	if err := run([]string{"gpu-probe"}, &out, m); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, out.Bytes())
	}
	return r
}

func TestGPU06_NothingIsCalledThatIsNotThere(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_UNKNOWN} {
		if r := probed(t, library(ret)); r.State == "ok" || r.Error == "" {
			t.Errorf("init %d: got %+v, want a state that is not ok", ret, r)
		}
	}
	if r := probed(t, library(nvml.SUCCESS)); r.State != "error" {
		t.Errorf("a library without symbols: got %+v", r)
	}
	old := probed(t, library(nvml.SUCCESS, "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"))
	if old.State != "ok" || old.Count != 2 || old.GPUs[0].UUID != "" || old.GPUs[0].ECC != nil {
		t.Errorf("an old library: got %+v", old)
	}
}

func TestEachGPUIsListed(t *testing.T) {
	r := probed(t, library(nvml.SUCCESS, "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetName", "nvmlDeviceGetUUID",
		"nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors"))
	if len(r.GPUs) != 2 || r.GPUs[0].UUID != "GPU-1" || *r.GPUs[0].ECC.Uncorrectable != uint64(nvml.MEMORY_ERROR_TYPE_UNCORRECTED) || r.GPUs[1].Error == "" {
		t.Errorf("got %+v, want one GPU with its counts and one that is lost", r)
	}
}
