#!/bin/sh
# Packs each crate that may be published, in the order of their dependencies.
#
#   scripts/package.sh           packs all of them (seconds), without the network
#   scripts/package.sh verify    compiles each one from its package, too (builds all dependencies
#                                anew)
#
# Fails if a crate can't be packed, or if a source in a package takes another file by its path that
# the package does not have. Packages lie in target/package. Changes that are not committed are
# packed as well; where CI is set, they are refused.
set -eu

cd "$(dirname "$0")/.."
PATH=$PATH:${HOME:-/root}/.cargo/bin
export PATH
CARGO=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}

case ${1:-} in
    '') verify=--no-verify ;;
    verify) verify= ;;
    *) echo "usage: $0 [verify]" >&2; exit 2 ;;
esac
dirty=
if [ -z "${CI:-}" ] && [ -n "$(git status --porcelain 2>/dev/null)" ]; then
    echo "package: with changes that are not committed"
    dirty=--allow-dirty
fi

names=
for manifest in crates/*/Cargo.toml lab/*/Cargo.toml; do
    grep -q '^publish' "$manifest" || names="$names $(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1)"
done
# shellcheck disable=SC2086
packages=$(printf ' --package %s' $names)
rm -rf "$target/package"
# shellcheck disable=SC2086
$CARGO package --quiet --locked --offline $dirty $verify $packages

unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
status=0 count=0
for name in $names; do
    set -- "$target/package/$name"-[0-9]*.crate
    [ -f "$1" ] || { echo "package: $name was not packed" >&2; exit 1; }
    tar -xzf "$1" -C "$unpacked"
    count=$((count + 1))
done
cd "$unpacked"
sources=$(grep -rlE --include '*.rs' '#\[path = |include(_str|_bytes)?!\(' . || true)
for source in $sources; do
    for path in $(sed -nE 's/.*(#\[path = |include(_str|_bytes)?!\()"([^"]*)".*/\3/p' "$source"); do
        here=$(dirname "$source")
        [ -f "$here/$path" ] || { echo "package: $source takes $path, which is not packed" >&2; status=1; }
    done
done
[ $status != 0 ] || echo "package: $count crates"
exit $status
