#!/bin/sh
# Packs what `make static` has built with its pages, completions and units:
# target/zerowire-VERSION-x86_64.tar.xz. To be unpacked below /usr/local, whatever the distribution:
#
#   tar -xJf zerowire-VERSION-x86_64.tar.xz -C /usr/local --strip-components 1
#   systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload
#
# The same tree and compiler give the same file, byte by byte.
set -eu

cd "$(dirname "$0")/.."
build=${BUILD:-target/x86_64-unknown-linux-gnu/release}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=zerowire-$version-x86_64
out=${1:-target}
[ -x "$build/zerowire" ] && [ -x "$build/zerowire-bench" ] ||
    { echo "tarball: $build lacks zerowire or zerowire-bench: run 'make static' first" >&2; exit 1; }
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
unset MAKEFLAGS MFLAGS MAKELEVEL
${MAKE:-make} -s install-program install-bench DESTDIR="$work" PREFIX=/usr/local BUILD="$build" >/dev/null
cp LICENSE-APACHE LICENSE-MIT "$work/usr/local/share/doc/zerowire"
mkdir -p "$out"
tar -C "$work/usr/local" --sort name --mtime "@$epoch" --owner 0 --group 0 --numeric-owner \
    --transform "s|^\.|$name|S" -cJf "$out/$name.tar.xz" .
echo "$out/$name.tar.xz"
