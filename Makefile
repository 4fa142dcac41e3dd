# Firstlight: every target works on a bare Debian 12 with git, make and Go 1.26.7, and works a second time at once.
# bin/ holds all that is made: programs, inputs (the kernel package), caches, results of scenarios.

SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
LDFLAGS := -s -w
STATIC := CGO_ENABLED=0 $(GO) build -trimpath -ldflags='$(LDFLAGS)'
# Two compilers at a time is what two cores carry beside a guest.
export GOFLAGS += -p=2

help: ## what there is to make
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is missing: Debian packages, the kernel that guests boot
	@bash testbed/setup.sh

build: setup ## bin/: firstlight, imagebuild, testbed, machine-agent (static), gpu-probe (dynamic)
	@mkdir -p bin
	$(STATIC) -o bin/machine-agent ./ramdisk/cmd/machine-agent
	$(STATIC) -o bin/ ./appliance/cmd/firstlight ./imagebuild/cmd/imagebuild ./testbed/cmd/testbed ./testbed/cmd/crash-appliance
	CGO_ENABLED=1 CGO_CFLAGS="-g -O2 -Wno-deprecated-declarations" $(GO) build -trimpath -ldflags='$(LDFLAGS)' -o bin/gpu-probe ./ramdisk/cmd/gpu-probe

demo: build ## an appliance with its page and a rack of three virtual machines, until Ctrl-C (root; DEMO_EXIT=1 ends with the first active one)
	@bin/testbed demo

bench: build ## measure beside tftpd-hpa, atftpd, dnsmasq, nginx: one table, and bin/bench.json (root; BENCH="P2 P3" for some)
	@bash testbed/bench/peers.sh
	bin/testbed bench $(BENCH)

test: build lint ## unit tests, fuzzing and the core scenarios (root, QEMU), within 40 minutes on two cores
	$(GO) test -timeout 30m ./...
	@$(MAKE) --no-print-directory fuzz
	FIRSTLIGHT_SCENARIOS=core $(GO) test -count=1 -v -timeout 60m ./testbed/scenario

test-all: build lint ## unit tests, tests in guests, every scenario and fuzzing (hours on two cores)
	$(GO) test -timeout 30m ./...
	FIRSTLIGHT_VM_TEST=1 FIRSTLIGHT_QEMU=1 $(GO) test -count=1 -p 1 -timeout 60m ./ramdisk ./site ./testbed/hostile ./testbed/rack
	$(GO) test -count=1 -timeout 40m ./imagebuild -qemu
	FIRSTLIGHT_SCENARIOS=all $(GO) test -count=1 -v -timeout 240m ./testbed/scenario
	@$(MAKE) --no-print-directory fuzz

test-short: ## unit tests alone: no root, no QEMU, under two minutes once built
	$(GO) test -short -timeout 10m ./...

screens: setup ## a picture of every page, phone to desktop, light and dark, into bin/screens
	FIRSTLIGHT_SCREENS=$(CURDIR)/bin/screens $(GO) test -count=1 -timeout 20m -run TestScreens ./appliance/internal/web

web-vendor: ## copy the page's pinned scripts out of their npm packages again
	@bash appliance/internal/web/npm/vendor.sh

fuzz: ## every fuzz target for a few seconds (FUZZTIME, default 10s)
	@bash testbed/fuzz.sh

test-fresh: ## in a bare Debian 12 root: clone HEAD and do what the README says (root; see testbed/fresh.sh)
	@bash testbed/fresh.sh

lint: setup bin/tools/staticcheck bin/tools/protoc-gen-buf-lint ## gofmt, vet, staticcheck, import table, buf, generated code
	@bad=$$(git ls-files -co --exclude-standard '*.go' | grep -v '\.pb\.go$$' | xargs gofmt -l); if [ -n "$$bad" ]; then echo "not gofmt-ed:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	bin/tools/staticcheck ./...
	$(GO) test ./testbed/rules
	bash gateway-client/proto/generate.sh --check

bin/tools/staticcheck: testbed/tools/go.mod
	@mkdir -p bin/tools
	cd testbed/tools && GOFLAGS=-mod=readonly $(GO) build -o ../../bin/tools/ honnef.co/go/tools/cmd/staticcheck

bin/tools/protoc-gen-buf-lint: gateway-client/proto/tools/go.mod
	@mkdir -p bin/tools
	cd gateway-client/proto/tools && GOFLAGS=-mod=readonly $(GO) build -o ../../../bin/tools/ github.com/bufbuild/buf/cmd/protoc-gen-buf-lint

generate: setup ## generate Go from the messages in gateway-client/proto
	@bash gateway-client/proto/generate.sh

vectors: setup ## sign the envelope test vectors anew, by a program that is not ours
	@python3 gateway-client/envelope/testdata/make.py

clean: ## remove bin/
	rm -rf bin

.PHONY: help setup build demo bench test test-all test-short test-fresh fuzz lint generate vectors clean
