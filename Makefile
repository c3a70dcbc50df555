# zerowire: `make` lists what there is to do.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=

bindir = $(PREFIX)/bin
libexecdir = $(PREFIX)/libexec
datadir = $(PREFIX)/share

# rustup puts cargo here; a fresh shell may not know yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help build demo demo-soft test check fuzz bench doctor lint fmt install uninstall clean

help: ## List the targets
	@echo "make TARGET, where TARGET is:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## Build the program: target/release/zerowire
	$(CARGO) build --release --locked --package zerowire-cli

demo: ## A stock Debian guest on a tap (root; installs and downloads what is missing, once)
	@scripts/install.sh vm
	$(CARGO) build --release --locked --package zerowire-cli --package zerowire-vmtest
	@target/release/zerowire-demo

demo-soft: build ## The same story without a VM: no QEMU, no download, no root
	@target/release/zerowire demo

test: ## Everything that CI runs (root; under 20 minutes on 2 CPUs)
	@scripts/test.sh all

check: ## Lint and the tests without QEMU
	@scripts/test.sh check

fuzz: ## The fuzz targets, FUZZ_SECONDS (600) each; the corpus is kept in fuzz/corpus
	@scripts/install.sh base
	@scripts/fuzz.sh long

bench: build ## Measure the network device against the bare system calls (some minutes)
	target/release/zerowire bench net

doctor: build ## What this kernel, user and network namespace can do, and how to get the rest
	@target/release/zerowire doctor

lint: ## Formatting and clippy, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --locked -- --deny warnings

fmt: ## Format the sources
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

install: ## Install below PREFIX (default /usr/local) and DESTDIR; build first
	@test -x target/release/zerowire || { echo "make install: no target/release/zerowire: run 'make build' first" >&2; exit 1; }
	install -D -m 755 target/release/zerowire "$(DESTDIR)$(bindir)/zerowire"
	install -d "$(DESTDIR)$(libexecdir)" "$(DESTDIR)$(datadir)/qemu/vhost-user"
	for device in net vsock; do \
		ln -sfn ../bin/zerowire "$(DESTDIR)$(libexecdir)/zerowire-$$device" && \
		sed 's|@libexecdir@|$(libexecdir)|' dist/50-zerowire-$$device.json.in \
			> "$(DESTDIR)$(datadir)/qemu/vhost-user/50-zerowire-$$device.json" && \
		chmod 644 "$(DESTDIR)$(datadir)/qemu/vhost-user/50-zerowire-$$device.json" || exit 1; \
	done

uninstall: ## Remove what install put there
	rm -f "$(DESTDIR)$(bindir)/zerowire"
	for device in net vsock; do \
		rm -f "$(DESTDIR)$(libexecdir)/zerowire-$$device" \
			"$(DESTDIR)$(datadir)/qemu/vhost-user/50-zerowire-$$device.json"; \
	done

clean: ## Remove what was built; kernels and QEMU stay in ~/.cache/zerowire
	$(CARGO) clean
