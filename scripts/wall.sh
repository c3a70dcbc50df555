#!/bin/sh
# The wall between what is shipped and what proves it.
#
#   scripts/wall.sh [PROGRAM]
#
# Fails if the program `zerowire` or the C library depends on a package of lab/, or on one that only
# the lab needs. Fails if one device depends on the other one, or what both stand on depends on a
# device. Fails if a type has `impl` blocks in more than three files.
# Fails if code outside zerowire-wire reads a packet's field at an offset of its own, or code
# outside zerowire-sys makes a system call of the C library. Fails if unsafe code comes into more
# files. Fails if who serves VMs on ports names one of them: what is particular to a port lies in
# its folder. Fails if a comment has more than 100 columns.
# Fails if PROGRAM (default target/release/zerowire) has more than 5 MB when stripped.
# A program that was not built, or whose sources have changed since, is left out.
set -eu

cd "$(dirname "$0")/.."
PATH=$PATH:${HOME:-/root}/.cargo/bin
export PATH
CARGO=${CARGO:-cargo}
most=5000000
program=${1:-target/release/zerowire}

lab=$(sed -n 's/^name = "\(.*\)"$/\1/p' lab/*/Cargo.toml)
status=0

# without PACKAGE NAME...: PACKAGE depends on none of these.
without() {
    package=$1
    shift
    tree=$($CARGO tree --locked --package "$package" --edges normal --prefix none --format '{p}')
    for name in "$@"; do
        if printf '%s\n' "$tree" | grep -q "^$name v"; then
            echo "wall: $package depends on $name: cargo tree --package $package --edges normal --invert $name" >&2
            status=1
        fi
    done
}
for package in zerowire-cli zerowire-c; do
    # shellcheck disable=SC2086
    without $package $lab plotters hdrhistogram
done
# What both devices stand on knows none of them, and they don't know each other.
without zerowire-vhost zerowire-net zerowire-vsock
without zerowire-net zerowire-vsock
without zerowire-vsock zerowire-net

# Types of one name in a crate count as one.
spread=$(find crates lab -name '*.rs' | grep -v '/tests[/.]' | xargs awk '
    /^impl/ {
        line = $0
        gsub(/->/, "", line)
        while (gsub(/<[^<>]*>/, "", line)) { }
        sub(/^impl */, "", line)
        sub(/.* for /, "", line)
        sub(/^.*::/, "", line)
        if (!match(line, /^&?[A-Za-z_0-9]+/)) next
        split(FILENAME, at, "/")
        type = at[1] "/" at[2] ": " substr(line, 1, RLENGTH)
        if ((type, FILENAME) in seen) next
        seen[type, FILENAME] = 1
        files[type] = files[type] " " FILENAME
        count[type]++
    }
    END { for (type in count) if (count[type] > 3) print type " has impl blocks in " count[type] " files:" files[type] }')
if [ -n "$spread" ]; then
    echo "wall: $spread" >&2
    status=1
fi

# Fields of packets that are named by a number, and system calls. Modules of tests have code of
# their own.
strays=$(find crates -name '*.rs' | grep -v '/zerowire-\(wire\|sys\)/\|/\(tests\|testing\|examples\)[/.]' | xargs awk '
    FNR == 1 { is_test = 0; behind = 0 }
    is_test { if (/^}/) is_test = 0; next }
    behind && /^(pub(\([a-z]+\))? )?mod [a-z_0-9]+ \{/ { is_test = 1 }
    { behind = /^#\[cfg\(test\)\]/ || (behind && /^#\[/) }
    is_test || /^ *\/\// { next }
    /from_be_bytes\(\[[a-z_]+\[[0-9]|\.get\([0-9]+\.\.[0-9]+\)/ ||
    /(arp|frame|head|header|ip|network|packet|private|reply|request|segment|start|tcp|transport|udp|vnet)\[[0-9]+(\.\.[0-9]+)?\]/ {
        print FILENAME ":" FNR " names an offset: put the field into zerowire-wire"
    }
    /libc::[a-z_0-9]+\(/ { print FILENAME ":" FNR " makes a system call: put it into zerowire-sys" }')
if [ -n "$strays" ]; then
    echo "wall: $strays" >&2
    status=1
fi

ports=crates/zerowire-net/src/port
# A port's folder has a control.rs; the others are tests of a file beside them.
kinds=$(cd $ports && find . -mindepth 2 -maxdepth 2 -name control.rs | cut -d / -f 2 | paste -s -d '|')
named=$(grep -rnE "\bport::.*\b($kinds)\b|^\s*($kinds)::|PortSpec::[A-Z][a-z]" \
    crates/zerowire-net/src crates/zerowire-cli/src/net --include='*.rs' | grep -vE "^$ports/|/tests(/|\.rs)" || true)
if [ -n "$named" ]; then
    echo "wall: a port is named outside of its folder: $named" >&2
    status=1
fi

# Files with unsafe code, in zerowire-sys and elsewhere. Where one is lost, the number goes down.
unsafe=$(find crates -name '*.rs' | grep -v '/\(tests\|testing\|examples\)[/.]' | xargs awk '
    { sub(/\/\/.*/, ""); gsub(/"[^"]*"/, "") }
    /(^|[^a-z_])unsafe([^a-z_]|$)/ && !(FILENAME in seen) { seen[FILENAME] = 1; count[FILENAME ~ /zerowire-sys/]++ }
    END { print count[1] + 0, count[0] + 0 }')
if [ "${unsafe% *}" -gt 18 ] || [ "${unsafe#* }" -gt 21 ]; then
    echo "wall: $unsafe files have unsafe code in zerowire-sys and elsewhere, of 18 and 21: put it into one of them" >&2
    status=1
fi

# In characters, not bytes. Attributes and `#define` are no comments.
wide=$(LC_ALL=C.UTF-8 grep -rnIE --exclude-dir=target '^.{101}' crates lab fuzz scripts dist Makefile Cargo.toml \
    --include='*.rs' --include='*.[ch]' --include='*.toml' --include='*.sh' --include='*.in' --include='*.conf' \
    --include='*.yaml' --include=Containerfile --include=Makefile | grep -E '^[^:]+:[0-9]+: *(//|/\*|\* |# )' || true)
if [ -n "$wide" ]; then
    echo "wall: a comment has more than 100 columns: $wide" >&2
    status=1
fi

# What cargo noted beside the program: all its sources.
is_current() {
    for source in $(sed 's/^[^:]*://' "$program.d"); do
        [ -e "$source" ] && [ ! "$source" -nt "$program" ] || return 1
    done
}
if [ -x "$program" ] && [ -f "$program.d" ] && is_current; then
    short=$(mktemp)
    trap 'rm -f "$short"' EXIT
    strip -o "$short" "$program"
    bytes=$(wc -c <"$short")
    echo "wall: $program has $bytes bytes stripped, of $most"
    [ "$bytes" -le $most ] || status=1
else
    echo "wall: no size: $program is not built, or its sources have changed"
fi
exit $status
