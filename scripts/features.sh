#!/bin/sh
# Compiles the library with each of its features alone, and with none, without a warning.
#
#   scripts/features.sh [FEATURE...]
set -eu

cd "$(dirname "$0")/.."
PATH=$PATH:${HOME:-/root}/.cargo/bin
export PATH
CARGO=${CARGO:-cargo}

known=$(sed -n '/^\[features\]/,/^$/s/^\([a-z-]*\) = .*/\1/p' crates/zerowire/Cargo.toml | grep -vx -e default -e testing)
[ $# != 0 ] || set -- none $known
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
for feature in "$@"; do
    with=$feature
    [ "$feature" != none ] || with=
    if $CARGO check --quiet --locked --package zerowire --no-default-features --features "$with" 2>"$log" && ! grep -q '^warning' "$log"; then
        echo "features: $feature: ok"
    else
        cat "$log"
        echo "features: $feature: FAILED" >&2
        status=1
    fi
done
exit $status
