# zerowire: `make` lists what there is to do.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Where the program and the C library that `make install` takes were built.
BUILD = target/release
# What takes symbols out of what is installed; nothing leaves them in (STRIP=).
STRIP = strip

bindir = $(PREFIX)/bin
libexecdir = $(PREFIX)/libexec
datadir = $(PREFIX)/share
libdir = $(PREFIX)/lib
includedir = $(PREFIX)/include
mandir = $(datadir)/man
docdir = $(datadir)/doc/zerowire
sysconfdir = $(PREFIX)/etc
unitdir = $(PREFIX)/lib/systemd/system
sysusersdir = $(PREFIX)/lib/sysusers.d
tmpfilesdir = $(PREFIX)/lib/tmpfiles.d
bashdir = $(datadir)/bash-completion/completions
zshdir = $(datadir)/zsh/site-functions
fishdir = $(datadir)/fish/vendor_completions.d
pages = $(notdir $(wildcard man/*.[135]))
bench_pages = $(filter zerowire-bench%,$(pages))
library_pages = $(filter %.3,$(pages))
program_pages = $(filter-out $(bench_pages) $(library_pages),$(pages))
units = $(notdir $(basename $(wildcard dist/systemd/*.in)) $(wildcard dist/systemd/*.socket))
# Files for other programs, and for those who confine the services.
shared = zerowire-api.yaml grafana/zerowire.json prometheus/zerowire.rules.yml systemd/metrics.conf systemd/packet.conf \
	systemd/sandbox.conf systemd/xdp.conf apparmor/zerowire-service selinux/zerowire.te selinux/zerowire.fc
# The pages, in the folders that their links to each other name.
documents = README.md SECURITY.md CHANGELOG.md \
	$(wildcard docs/*.md measurements/*.md measurements/data/*.md measurements/figures/*.svg)
version = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)

# rustup puts cargo here; a fresh shell may not know yet.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help build static header man measurements book demo demo-soft guest test check fuzz bench doctor lint fmt \
	install install-program install-bench install-library uninstall deb tarball clean

help: ## List the targets
	@echo "make TARGET, where TARGET is:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## Build the programs and the C library: target/release/zerowire, zerowire-bench, libzerowire_c.a, libzerowire.so.0
	$(CARGO) build --release --locked --package zerowire-cli --package zerowire-bench --package zerowire-c
	scripts/shared.sh "$(BUILD)/libzerowire_c.a" "$(BUILD)/libzerowire.so.0"

static: ## Build the programs without libraries, for guests: target/x86_64-unknown-linux-gnu/release/zerowire, zerowire-bench
	@scripts/static.sh

header: ## Write the C library's header anew, from its sources
	ZEROWIRE_UPDATE_HEADER=1 $(CARGO) test --locked --package zerowire-c --test it header::

man: header ## Write man/ and dist/completions anew, from the options and the header
	ZEROWIRE_UPDATE_MAN=1 $(CARGO) test --locked --package zerowire-cli --bin zerowire manual::
	ZEROWIRE_UPDATE_MAN=1 $(CARGO) test --locked --package zerowire-bench --bin zerowire-bench manual::
	ZEROWIRE_UPDATE_MAN=1 $(CARGO) test --locked --package zerowire-c --test it manual::

demo: ## A stock Debian guest on both devices (root; installs and downloads what is missing, once)
	@scripts/install.sh vm
	$(CARGO) build --release --locked --package zerowire-cli --package zerowire-vmtest --package zerowire-demo
	@target/release/zerowire-demo

demo-soft: ## The same story without a VM: no QEMU, no download, no root
	$(CARGO) build --release --locked --package zerowire-cli --package zerowire-demo
	@target/release/zerowire-demo --soft

guest: ## zerowire, and a guest to start by hand as in README.md, in target/guest (root; installs and downloads what is missing)
	@scripts/install.sh vm
	$(CARGO) build --release --locked --package zerowire-cli --package zerowire-vmtest --package zerowire-demo
	@target/release/zerowire-demo --guest target/guest

test: ## Everything that CI runs (root; 15 to 25 minutes on 2 CPUs, and the downloads once)
	@scripts/test.sh all

check: ## Lint and the tests without QEMU
	@scripts/test.sh check

fuzz: ## The fuzz targets, FUZZ_SECONDS (600) each; the corpus is kept in fuzz/corpus
	@scripts/install.sh base
	@scripts/fuzz.sh long

bench: build ## Measure the network device against the bare system calls (some minutes)
	target/release/zerowire-bench net

measurements: ## Write the tables and charts of measurements/ from the JSON in measurements/data
	$(CARGO) run --release --locked --package zerowire-bench -- render measurements

book: ## The pages as a book: target/book/index.html
	@command -v mdbook >/dev/null || \
		{ echo "make book: mdbook is missing: cargo install mdbook --locked" >&2; exit 1; }
	mdbook build book

doctor: build ## What this kernel, user and network namespace can do, and how to get the rest
	@target/release/zerowire doctor

lint: ## Formatting and clippy, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --locked -- --deny warnings

fmt: ## Format the sources
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

install: ## Install below PREFIX (default /usr/local) and DESTDIR, stripped (STRIP=: not); build first
	@test -x "$(BUILD)/zerowire" && test -x "$(BUILD)/zerowire-bench" && test -f "$(BUILD)/libzerowire.so.0" && test -f "$(BUILD)/libzerowire_c.a" || \
		{ echo "make install: $(BUILD) lacks zerowire, zerowire-bench, libzerowire.so.0 or libzerowire_c.a:" \
			"run 'make build' first" >&2; \
		exit 1; }
	@$(MAKE) install-program install-bench install-library

# $(1): a program. Its file, its pages and what shells complete.
define install_program
	install -D -m 755 "$(BUILD)/$(1)" "$(DESTDIR)$(bindir)/$(1)"
	$(if $(STRIP),$(STRIP) "$(DESTDIR)$(bindir)/$(1)")
	install -D -m 644 "dist/completions/$(1).bash" "$(DESTDIR)$(bashdir)/$(1)"
	install -D -m 644 "dist/completions/_$(1)" "$(DESTDIR)$(zshdir)/_$(1)"
	install -D -m 644 "dist/completions/$(1).fish" "$(DESTDIR)$(fishdir)/$(1).fish"
endef

# $(1): pages of the manual.
define install_pages
	for page in $(1); do \
		install -D -m 644 "man/$$page" "$(DESTDIR)$(mandir)/man$${page##*.}/$$page" || exit 1; \
	done
endef

install-program:
	$(call install_program,zerowire)
	$(call install_pages,$(program_pages))
	install -d "$(DESTDIR)$(libexecdir)" "$(DESTDIR)$(datadir)/qemu/vhost-user" "$(DESTDIR)$(unitdir)"
	for device in net vsock; do \
		ln -sfn ../bin/zerowire "$(DESTDIR)$(libexecdir)/zerowire-$$device" && \
		sed 's|@libexecdir@|$(libexecdir)|' dist/50-zerowire-$$device.json.in \
			> "$(DESTDIR)$(datadir)/qemu/vhost-user/50-zerowire-$$device.json" && \
		chmod 644 "$(DESTDIR)$(datadir)/qemu/vhost-user/50-zerowire-$$device.json" || exit 1; \
	done
	for unit in $(units); do \
		source="dist/systemd/$$unit"; test -f "$$source" || source="$$source.in"; \
		sed 's|@bindir@|$(bindir)|g;s|@sysconfdir@|$(sysconfdir)|g' "$$source" > "$(DESTDIR)$(unitdir)/$$unit" && \
		chmod 644 "$(DESTDIR)$(unitdir)/$$unit" || exit 1; \
	done
	install -D -m 644 dist/sysusers.d/zerowire.conf "$(DESTDIR)$(sysusersdir)/zerowire.conf"
	install -D -m 644 dist/tmpfiles.d/zerowire.conf "$(DESTDIR)$(tmpfilesdir)/zerowire.conf"
	for file in $(shared); do \
		install -D -m 644 "dist/$$file" "$(DESTDIR)$(datadir)/zerowire/$$file" || exit 1; \
	done
	for file in $(documents); do install -D -m 644 "$$file" "$(DESTDIR)$(docdir)/$$file" || exit 1; done
	ln -sfnr "$(DESTDIR)$(datadir)/zerowire" "$(DESTDIR)$(docdir)/dist"
	test -e "$(DESTDIR)$(sysconfdir)/zerowire/zerowire.toml" || \
		install -D -m 644 dist/zerowire.toml "$(DESTDIR)$(sysconfdir)/zerowire/zerowire.toml"

install-bench:
	$(call install_program,zerowire-bench)
	$(call install_pages,$(bench_pages))

install-library:
	install -D -m 755 "$(BUILD)/libzerowire.so.0" "$(DESTDIR)$(libdir)/libzerowire.so.0"
	$(if $(STRIP),$(STRIP) --strip-unneeded "$(DESTDIR)$(libdir)/libzerowire.so.0")
	ln -sfn libzerowire.so.0 "$(DESTDIR)$(libdir)/libzerowire.so"
	install -D -m 644 "$(BUILD)/libzerowire_c.a" "$(DESTDIR)$(libdir)/libzerowire.a"
	$(if $(STRIP),$(STRIP) --strip-debug "$(DESTDIR)$(libdir)/libzerowire.a")
	install -D -m 644 crates/zerowire-c/include/zerowire.h "$(DESTDIR)$(includedir)/zerowire.h"
	install -d "$(DESTDIR)$(libdir)/pkgconfig"
	sed 's|@prefix@|$(PREFIX)|;s|@libdir@|$(libdir)|;s|@includedir@|$(includedir)|;s|@version@|$(version)|' \
		crates/zerowire-c/zerowire.pc.in > "$(DESTDIR)$(libdir)/pkgconfig/zerowire.pc"
	chmod 644 "$(DESTDIR)$(libdir)/pkgconfig/zerowire.pc"
	$(call install_pages,$(library_pages))

uninstall: ## Remove what install put there
	rm -f "$(DESTDIR)$(bindir)/zerowire" "$(DESTDIR)$(bindir)/zerowire-bench" \
		"$(DESTDIR)$(libdir)/libzerowire.so.0" "$(DESTDIR)$(libdir)/libzerowire.so" \
		"$(DESTDIR)$(libdir)/libzerowire.a" "$(DESTDIR)$(includedir)/zerowire.h" \
		"$(DESTDIR)$(libdir)/pkgconfig/zerowire.pc"
	for device in net vsock; do \
		rm -f "$(DESTDIR)$(libexecdir)/zerowire-$$device" \
			"$(DESTDIR)$(datadir)/qemu/vhost-user/50-zerowire-$$device.json"; \
	done
	for page in $(pages); do \
		rm -f "$(DESTDIR)$(mandir)/man$${page##*.}/$$page"; \
	done
	for unit in $(units); do rm -f "$(DESTDIR)$(unitdir)/$$unit"; done
	rm -f "$(DESTDIR)$(sysusersdir)/zerowire.conf" "$(DESTDIR)$(tmpfilesdir)/zerowire.conf"
	for file in $(shared); do rm -f "$(DESTDIR)$(datadir)/zerowire/$$file"; done
	for file in $(documents) dist; do rm -f "$(DESTDIR)$(docdir)/$$file"; done
	! cmp -s dist/zerowire.toml "$(DESTDIR)$(sysconfdir)/zerowire/zerowire.toml" || \
		rm "$(DESTDIR)$(sysconfdir)/zerowire/zerowire.toml"
	for program in zerowire zerowire-bench; do \
		rm -f "$(DESTDIR)$(bashdir)/$$program" "$(DESTDIR)$(zshdir)/_$$program" \
			"$(DESTDIR)$(fishdir)/$$program.fish"; \
	done

deb: build ## Debian packages in target/deb: zerowire, zerowire-bench, libzerowire0, libzerowire-dev
	@scripts/deb.sh

tarball: static ## The programs without libraries and their files, to unpack below /usr/local: target/zerowire-VERSION-x86_64.tar.xz
	@scripts/tarball.sh

clean: ## Remove what was built; kernels and QEMU stay in ~/.cache/zerowire
	$(CARGO) clean
