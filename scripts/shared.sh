#!/bin/sh
# Links the shared C library from the static one, so that its symbols have versions:
#   scripts/shared.sh libzerowire_c.a libzerowire.so.0
# Cargo can't. rustc gives the linker an anonymous version script, beside which GNU ld refuses
# one with names, and lld ignores it.
set -eu

map=$(dirname "$0")/../crates/zerowire-c/zerowire.map
exec "${CC:-cc}" -shared -o "$2" \
    -Wl,-soname,libzerowire.so.0 -Wl,--version-script="$map" \
    -Wl,--whole-archive "$1" -Wl,--no-whole-archive -Wl,--gc-sections \
    -Wl,-z,defs,-z,relro,-z,now,-z,noexecstack -Wl,--as-needed -lutil -lrt -lpthread -lm -ldl
