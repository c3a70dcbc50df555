#!/bin/sh
# Checks the dependencies of the workspace and of the fuzz targets against deny.toml.
#
#   scripts/deny.sh
#
# Where cargo-deny is installed (cargo install cargo-deny --locked) it checks all of deny.toml.
# Elsewhere this script checks licences and sources by what cargo knows, shows dependencies that are
# there in two versions, and ends with a line `not run:` about advisories.
set -eu

cd "$(dirname "$0")/.."
PATH=$PATH:${HOME:-/root}/.cargo/bin
export PATH
CARGO=${CARGO:-cargo}
manifests="Cargo.toml fuzz/Cargo.toml"

if cargo-deny --version >/dev/null 2>&1; then
    for manifest in $manifests; do
        cargo-deny --manifest-path "$manifest" --locked check --config "$PWD/deny.toml"
    done
    exit
fi

# The strings of the list that begins with `allow = [`, one a line.
allowed=$(sed -n '/^allow = \[/,/^]/s/^ *"\(.*\)",$/\1/p' deny.toml)
# CRATE LICENCE, one a line.
excepted=$(sed -n 's/^ *{ crate = "\(.*\)", allow = \["\(.*\)"\] },$/\1 \2/p' deny.toml)
[ -n "$allowed" ] || { echo "deny: deny.toml allows no licence, or is written in another form than this script reads" >&2; exit 1; }
found=$(mktemp)
trap 'rm -f "$found"' EXIT
status=0

for manifest in $manifests; do
    $CARGO metadata --locked --format-version 1 --manifest-path "$manifest" |
        grep -o '"name":"[^"]*","version":"[^"]*","id":"[^"]*","license":[^,]*,[^{]*"source":[^,]*' |
        sed 's|"name":"\([^"]*\)","version":"\([^"]*\)","id":"[^"]*","license":"*\([^",]*\)"*,.*"source":"*\([^",]*\)"*$|\1@\2@\3@\4|' >"$found"
    packages=$(wc -l <"$found") wanted=$(grep -c '^\[\[package\]\]' "$(dirname "$manifest")/Cargo.lock")
    if [ "$packages" != "$wanted" ]; then
        echo "deny: $manifest: $packages packages were read, and its Cargo.lock has $wanted" >&2
        status=1
    fi
    # `OR` needs one side, `AND` both; `/` is an old `OR`.
    awk -F @ -v allowed="$allowed" -v excepted="$excepted" -v manifest="$manifest" '
        function takes(name, licence) { return licence in fine || (name " " licence) in except }
        BEGIN {
            n = split(allowed, list, "\n"); for (i = 1; i <= n; i++) fine[list[i]]
            n = split(excepted, list, "\n"); for (i = 1; i <= n; i++) except[list[i]]
        }
        {
            text = $3; gsub(/\//, " OR ", text); gsub(/[()]/, "", text)
            parts = split(text, part, " AND "); good = text != "null" && text != ""
            for (i = 1; i <= parts; i++) {
                ways = split(part[i], way, " OR "); one = 0
                for (j = 1; j <= ways; j++) if (takes($1, way[j])) one = 1
                if (!one) good = 0
            }
            if (!good) { print "deny: " manifest ": " $1 " " $2 " has the licence " $3 ", which deny.toml does not allow"; bad = 1 }
            if ($4 !~ /^(null|registry\+.*)$/) {
                print "deny: " manifest ": " $1 " " $2 " comes from " $4 ", and not from a registry"; bad = 1
            } else if ($4 != "null" && registry != "" && registry != $4) {
                print "deny: " manifest ": " $1 " " $2 " comes from " $4 ", others from " registry; bad = 1
            } else if ($4 != "null") {
                registry = $4
            }
            versions[$1] = versions[$1] " " $2; count[$1]++
        }
        END {
            for (name in count) if (count[name] > 1) print "deny: warning: " manifest ": " name " in" versions[name]
            exit bad
        }' "$found" || status=1
done
[ $status != 0 ] || echo "deny: licences and sources are as deny.toml allows"
echo "not run: advisories: cargo-deny is not installed (cargo install cargo-deny --locked)"
exit $status
