#!/bin/sh
# Builds `zerowire` and `zerowire-bench` without libraries, for guests that lack ours: files that
# run on the host and in any x86-64 guest. The second one draws no charts.
#
#   scripts/static.sh          for release: target/x86_64-unknown-linux-gnu/release
#   scripts/static.sh tests    for tests in guests, with the tests' own programs:
#                              target/x86_64-unknown-linux-gnu/debug. Macros and build scripts are
#                              those of cargo's tests. As guests are emulated, crates that move
#                              bytes are optimised a little (scripts/static-tests.toml).
set -eu

cd "$(dirname "$0")/.."
PATH=$PATH:${HOME:-/root}/.cargo/bin
export PATH
# They go into the guests' RAM disks, whose size is part of each saved guest: so there are no
# symbols. With --target, build scripts and macros are built without these flags.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols"
export CARGO_PROFILE_RELEASE_DEBUG=false

case ${1:-} in
    '') set -- --release ;;
    tests)
        # Optimising across a crate's units takes longer than it saves. The profile's lto would hold
        # for macros, too, and they would be built anew.
        CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="$CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS -C lto=off"
        set -- --config scripts/static-tests.toml --package zerowire-vmtest
        for program in zerowire zerowire-bench zw-vsock zw-recv zw-xdp zw-front; do
            set -- "$@" --bin "$program"
        done ;;
    *) echo "usage: $0 [tests]" >&2; exit 2 ;;
esac
exec "${CARGO:-cargo}" build --locked --target x86_64-unknown-linux-gnu --no-default-features \
    --package zerowire-cli --package zerowire-bench "$@"
