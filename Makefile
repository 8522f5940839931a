# gpupool. `make` lists the targets.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# How many packages build and test at once. Many tests start servers of their own: more than cores
# makes them slow, not fast.
P ?= 2
TOOLS := build/tools
GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION)
# Its output is go test's own, and a summary at its end; its exit code is go test's.
GOTESTSUM_VERSION := v1.13.0
GOTESTSUM := $(TOOLS)/gotestsum-$(GOTESTSUM_VERSION)

.PHONY: help build binary demo test unit lint generate generate-check bench e2e netns browser chaos soak soak-health clean kube

help: ## list the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

build: binary ## build build/gpupool and build/gpupool-agent
	@deploy/build.sh gpupool-agent

binary:
	@deploy/build.sh gpupool

demo: binary ## run the whole story on simulated servers; DEMO_EXIT=1 ends when it is told
	@build/gpupool demo

test: $(GOTESTSUM) ## install what the tests need and run them all; what was skipped and why, and what failed, is said at the end
	@deploy/packages.sh
	@deploy/packages.sh e2e
	$(GOTESTSUM) --format standard-quiet -- -p $(P) -timeout 20m ./...

unit: ## the fast loop: tests that neither link the Temporal server nor start other programs
	go test -short -p $(P) $$(go list -deps -test -f '{{if .ForTest}}{{.ForTest}} {{join .Deps ","}}{{end}}' ./... | grep -v go.temporal.io/server/ | cut -d' ' -f1 | grep ^gpupool/ | grep -v ^gpupool/deploy | sort -u)

lint: $(GOLANGCI) ## linters (.golangci.yml) and the check that workflows are deterministic
	$(GOLANGCI) run --allow-parallel-runners ./...
	@if [ -d workflows ]; then echo "go tool workflowcheck ./workflows/..."; go tool workflowcheck ./workflows/...; fi

$(GOLANGCI):
	@echo "building golangci-lint $(GOLANGCI_VERSION), once; about a minute"
	@mkdir -p $(TOOLS)
	@GOFLAGS= GOBIN=$(CURDIR)/$(TOOLS) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(TOOLS)/golangci-lint $@

$(GOTESTSUM):
	@mkdir -p $(TOOLS)
	@GOFLAGS= GOBIN=$(CURDIR)/$(TOOLS) go install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	@mv $(TOOLS)/gotestsum $@

generate: ## write generated code and documents again
	go generate ./...

generate-check: ## fail where generated files differ from what the generators make
	@state() { git diff HEAD -- . ':!build'; git ls-files --others --exclude-standard; }; \
	before=$$(state); $(MAKE) --no-print-directory generate; after=$$(state); \
	if [ "$$before" != "$$after" ]; then \
		diff <(printf '%s\n' "$$before") <(printf '%s\n' "$$after") | head -40; \
		echo "generated files are out of date: run 'make generate' and commit what it changes" >&2; exit 1; \
	fi

e2e: ## a real virtual machine arrives through everything, whatever is done to it, and runs a job; as root, half an hour
	@deploy/packages.sh e2e
	GPUPOOL_E2E=all go test -count 1 -timeout 60m -v $(if $(RUN),-run '$(RUN)') ./cmd/gpupool/e2e

netns: ## the boot service with other people's clients and firmware, in network namespaces; as root, 15 minutes
	@deploy/packages.sh netns
	@[ -e build/boot-files/SOURCES ] || deploy/pxe/boot-files.sh build/boot-files
	go test -count 1 -tags netns -timeout 40m -v $(if $(RUN),-run '$(RUN)') ./pxe/realclients

bench: binary ## measure; ONLY=group for one of system, engine, pxe, bmc, commit, ...; writes build/bench.json
	@[ "$(ONLY)" != pxe ] || deploy/packages.sh netns
	@[ -n "$(filter-out commit,$(ONLY))" ] || GPUPOOL_BENCH_FIGURES=$(CURDIR)/build/commit.json go test -run '^$$' -bench Commit -benchtime 1x -timeout 30m ./activities/allocator
	@[ -n "$(filter-out health,$(ONLY))" ] || GPUPOOL_BENCH_FIGURES=$(CURDIR)/build/health.json go test -run '^$$' -bench Health -benchtime 1x -timeout 10m ./activities/health
	@[ -n "$(filter-out health,$(ONLY))" ] || GPUPOOL_BENCH_FIGURES=$(CURDIR)/build/agent.json go test -run '^$$' -bench AtRest -benchtime 100x -timeout 10m ./cmd/gpupool-agent
	@build/gpupool bench $(if $(ONLY),--only $(ONLY)) $(if $(filter-out commit,$(ONLY)),,--with build/commit.json) $(if $(filter-out health,$(ONLY)),,--with build/health.json --with build/agent.json) --json build/bench.json

browser: ## walk through the console in a real browser (chromium); pictures in build/browser
	go test -count 1 -tags browser -run Browser -v ./api/console

chaos: ## the tests that kill processes, over and over; N=times. And a real Slurm and a real Kubernetes under load, SECONDS=n (600) each
	GPUPOOL_CHAOS_SECONDS=$(or $(SECONDS),600) go test -p 1 -count 1 -timeout 60m -run Chaos -v ./activities/cluster/slurm ./activities/cluster/kube
	go test -p $(P) -count $(or $(N),5) -timeout 60m -run 'Kill|SIGKILL|Crash' ./...

soak: ## fuzz targets and property tests for SECONDS=n (300) all together
	@deploy/soak.sh $(or $(SECONDS),300)

soak-health: ## a lab of SERVERS=n (1000) under load, FAULTS=n (200) of every kind, a technician and an operator; what the record says of it is checked
	GPUPOOL_LAB_SERVERS=$(or $(SERVERS),1000) GPUPOOL_LAB_FAULTS=$(or $(FAULTS),200) go test -count 1 -timeout 4h -v -run TestFaultsInALabUnderLoad ./cmd/gpupool/demo

kube: ## build a Kubernetes control plane for the tests, once, into the user's cache (ten minutes of processor time)
	@deploy/kube/build.sh

clean: ## remove what was built
	rm -rf build
