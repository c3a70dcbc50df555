#!/bin/sh
# Builds `zerowire` and `zerowire-bench` without libraries, for guests that lack ours: files in
# target/x86_64-unknown-linux-gnu/release that run on the host and in any x86-64 guest.
# The second one draws no charts. What is said behind the script's name is said to cargo.
set -eu

cd "$(dirname "$0")/.."
PATH=$PATH:${HOME:-/root}/.cargo/bin
export PATH
# Only for what runs in the guest: with --target, build scripts and macros are built without.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static"
# They go into the guests' RAM disks, whose size is part of each saved guest.
export CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=true
exec "${CARGO:-cargo}" build --release --locked --target x86_64-unknown-linux-gnu --no-default-features \
    --package zerowire-cli --package zerowire-bench "$@"
