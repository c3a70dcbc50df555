#!/bin/sh
# Runs the tests and adds up what they say.
#
#   scripts/test.sh all      installs what is missing, then lint, cargo's tests, the fuzz
#                            targets for some seconds each, and the tests in real guests
#   scripts/test.sh check    lint and cargo's tests only
#
# Must run as root: cargo's tests of the devices and of zerowire-cli and all tests in
# guests make network namespaces and taps.
#
# What failed is named, with its first words, right above the last line. The last line is
# `N passed, N failed, N skipped`, summed over all stages. A stage that ends badly without
# a failed test of its own counts as one failed test, so nothing that dies is lost. The
# exit status is 0 only if nothing failed.
set -u

cd "$(dirname "$0")/.." || exit 1
PATH=$PATH:${HOME:-/root}/.cargo/bin:/usr/sbin:/sbin
export PATH
# The results are read from what cargo prints.
export CARGO_TERM_COLOR=never
# What it would save the next build costs this one time. Where builds were incremental already, they
# stay so.
if [ -n "${CI:-}" ] || [ -z "$(ls -A target/debug/incremental 2>/dev/null)" ]; then
    export CARGO_INCREMENTAL=0
fi
CARGO=${CARGO:-cargo}
passed=0 failed=0 skipped=0
failures=
# The program that is tested in guests (it runs there, too, as does zerowire-bench beside it), and
# what drives them.
ZEROWIRE_BIN=$PWD/target/x86_64-unknown-linux-gnu/debug/zerowire
drivers=target/debug

say() { printf '\n== %s\n' "$*"; }

case ${1:-} in
    all | check) ;;
    *) echo "usage: $0 all|check" >&2; exit 2 ;;
esac
if [ "$(id -u)" != 0 ]; then
    echo "$0: run this as root: the tests make network namespaces and taps" >&2
    exit 2
fi

# What `set -e` does, but with the closing line: a stage that can't begin ends the run.
give_up() {
    echo "$0: $*" >&2
    finish_with_failure
}
# One failure a line, for the end.
note_failures() {
    failures="$failures$1
"
}
finish_with_failure() {
    printf '%s' "$failures"
    failed=$((failed + 1))
    echo "$passed passed, $failed failed, $skipped skipped"
    exit 1
}

logs=target/test-logs
mkdir -p $logs || give_up "cannot create $logs"
rm -f $logs/*.log $logs/*.status

# logged NAME COMMAND...: shows and keeps what the command says; returns its status.
logged() {
    log=$logs/$1.log
    shift
    { "$@" 2>&1; echo $? >"$log.status"; } | tee "$log"
    return "$(cat "$log.status")"
}

# follow NAME PID: shows the log of what runs in the background, to its end; returns its status.
follow() {
    tail -n +1 --pid="$2" -f "$logs/$1.log"
    wait "$2"
}

# A stage without tests of its own: one failure if it fails.
stage() {
    name=$1
    shift
    say "$name: $*"
    if logged "$name" "$@"; then
        echo "$name: ok"
    else
        failed=$((failed + 1))
        note_failures "failed: $name (see $logs/$name.log)"
        echo "$name: FAILED (see $logs/$name.log)"
        return 1
    fi
}

ready() {
    $CARGO fmt --version >/dev/null 2>&1 && $CARGO clippy --version >/dev/null 2>&1 && return
    say "toolchain: adding rustfmt and clippy"
    rustup component add rustfmt clippy || give_up "no rustfmt and clippy: install them with rustup"
}

# What the later stages need, while others wait. What fails here fails there again, and is shown and
# counted. The fuzz targets are needed last, and go on beside the guests.
build_ahead() {
    scripts/static.sh tests
    nice scripts/fuzz.sh build
}

# Prints the directory of each test program's package, and the program. The long ones come first.
test_programs() {
    $tests --no-run --message-format json 2>/dev/null | sed -n \
        's|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*|\1 \2|p' |
        awk '/\/it-[^\/]*$/ { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }'
}

# Much of what the test programs do is waiting, and cargo starts them one by one: so three of them
# run at once, each in its package's directory, as cargo runs it. Cargo can't be asked for the
# programs of some packages only: it would build their dependencies anew, with other features. A
# package has one long program, and the longest runs alone at the end: so each has half as many
# threads again as there are CPUs.
cargo_tests() {
    tests="$CARGO test --workspace --locked --no-fail-fast"
    say "cargo: $tests"
    status=0
    logged cargo-build $tests --no-run || status=$?
    if [ $status = 0 ]; then
        [ "$1" != all ] || build_ahead >$logs/build-ahead.log 2>&1 &
        # shellcheck disable=SC2016
        test_programs | LOGS=$PWD/$logs THREADS=$((($(nproc) * 3 + 1) / 2)) xargs -n 2 -P 3 sh -c '
            name=${1##*/}.$(basename "${2%-*}") log=$LOGS/run-$(basename "$2").log
            echo "     Running $name ($2)" >"$log"
            cd "$1" && CARGO_MANIFEST_DIR=$1 "$2" --test-threads "$THREADS" >>"$log" 2>&1
            status=$?
            echo "$name: $(grep "^test result: " "$log" || echo "no result, status $status")"
            [ $status = 0 ]' sh || status=$?
        cat $logs/run-*.log
        logged cargo-doc $tests --doc || status=$?
    fi
    cat $logs/cargo-build.log $logs/run-*.log $logs/cargo-doc.log >$logs/cargo.log 2>/dev/null
    # None may be left out.
    built=$(grep -c '^ *Executable ' $logs/cargo-build.log) run=$(grep -c '^ *Running ' $logs/cargo.log)
    [ "$built" = "$run" ] || { status=1; echo "cargo: $built test programs were built, and $run run"; }
    # Each test program is announced, and ends with one line or more of the form
    # `test result: ok. 5 passed; 0 failed; 1 ignored; ...`. One that crashed has none.
    sums=$(awk '
        function close_program() { if (open) { lost++; print "cargo: no result from " name > "/dev/stderr" } }
        /^ +(Running|Doc-tests) / { close_program(); open = 1; name = $0; sub(/^ +/, "", name) }
        /^test result: / { open = 0; p += $4; f += $6; s += $8 }
        END { close_program(); print p + 0, f + 0, s + 0, lost + 0 }' $logs/cargo.log)
    # shellcheck disable=SC2086
    set -- $sums
    bad=$(($2 + $4))
    [ $status != 0 ] && [ $bad = 0 ] && bad=1
    [ "$1" = 0 ] && [ $bad = 0 ] && bad=1
    echo "cargo-tests: $1 passed, $bad failed, $3 skipped"
    # The program is the last one that was announced above the test.
    [ $bad = 0 ] || note_failures "$(awk '
        /^ +(Running|Doc-tests) / { name = $0; sub(/^ +(Running|Doc-tests) /, "", name); sub(/ \(.*/, "", name) }
        /^test .* FAILED$/ { print "failed: " name ": " $2; named++ }
        /^---- .* stdout ----$/ { words = 6; next }
        /^failures:$/ { words = 0 }
        words > 0 && NF { print "  | " $0; words-- }
        END { if (!named) print "failed: cargo test (see the end of its log)" }' $logs/cargo.log)"
    # A test that can say nothing here passes, and writes such a line.
    unable=$(grep -c '^not run: ' $logs/cargo.log)
    passed=$((passed + $1 - unable)) failed=$((failed + bad)) skipped=$((skipped + $3 + unable))
}

# They run already, beside other stages: each has its time, not a number of inputs.
fuzz_tests() {
    say "fuzz: scripts/fuzz.sh short"
    status=0
    follow fuzz "$fuzz" || status=$?
    sums=$(sed -n 's/^fuzz-tests: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' $logs/fuzz.log | tail -n 1)
    # shellcheck disable=SC2086
    set -- ${sums:-0 1 0}
    bad=$2
    [ $status != 0 ] && [ "$bad" = 0 ] && bad=1
    [ "$1" = 0 ] && [ "$bad" = 0 ] && bad=1
    [ "$bad" = 0 ] || note_failures "failed: $bad fuzz targets (see $logs/fuzz.log)"
    [ -n "$sums" ] || echo "fuzz-tests: $1 passed, $bad failed, $3 skipped (they ended without a result)"
    passed=$((passed + $1)) failed=$((failed + bad)) skipped=$((skipped + $3))
}

vm_tests() {
    # What drives the guests is as cargo's tests were built, with the same features, so that little
    # is left to build.
    stage build $CARGO build --workspace --locked --bins --examples || return
    stage static scripts/static.sh tests || return
    ZEROWIRE_AGENTS=${ZEROWIRE_BIN%/*}
    export ZEROWIRE_BIN ZEROWIRE_AGENTS
    say "vm: $drivers/zerowire-vmtest"
    status=0
    logged vm $drivers/zerowire-vmtest || status=$?
    sums=$(sed -n 's/^vm-tests: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' $logs/vm.log | tail -n 1)
    # shellcheck disable=SC2086
    set -- ${sums:-0 1 0}
    bad=$2
    [ $status != 0 ] && [ "$bad" = 0 ] && bad=1
    [ "$1" = 0 ] && [ "$bad" = 0 ] && bad=1
    [ "$bad" = 0 ] || note_failures "$(sed -n 's/^\[.*\] FAIL /failed: /p' $logs/vm.log | grep . || echo "failed: the tests in guests (see $logs/vm.log)")"
    [ -n "$sums" ] || echo "vm-tests: $1 passed, $bad failed, $3 skipped (they ended without a result)"
    passed=$((passed + $1)) failed=$((failed + bad)) skipped=$((skipped + $3))
}

# What needs a NIC is never run by itself, since it changes the NIC's settings and restarts a queue.
hw_tests() {
    stage hw-test scripts/hw-test.sh --program "$ZEROWIRE_BIN" --rehearse --bytes 100000000 --port "${HW_TEST_PORT:-9871}" && passed=$((passed + 1))
    found=
    for folder in /sys/class/net/*/device/driver; do
        [ -e "$folder" ] || continue
        driver=$(basename "$(readlink -f "$folder")") link=${folder#/sys/class/net/}
        case $driver in bnxt_en | mlx5_core | gve | fbnic) found="$found ${link%%/*} ($driver)" ;; esac
    done
    if [ -n "$found" ]; then
        reason="it changes settings of a NIC; here it could be:$found"
    else
        reason="no NIC here whose driver gives queues away (bnxt_en, mlx5_core, gve, fbnic)"
    fi
    not_run="not run: zero-copy receive into a NIC's queue: $reason; by hand: scripts/hw-test.sh IF QUEUE --peer HOST"
    skipped=$((skipped + 1))
}

# What a shell runs beside itself does not hear of an interrupt.
trap 'trap "" TERM; kill 0; exit 130' INT

begin=$(date +%s)
not_run=
if [ "$1" = all ]; then
    say "install: scripts/install.sh packages"
    scripts/install.sh packages || give_up "scripts/install.sh packages failed; see its messages above"
fi
ready
if [ "$1" = all ]; then
    # What guests start from is needed later, and most of it is waiting for downloads.
    scripts/install.sh vm >$logs/install.log 2>&1 &
    install=$!
fi
stage format $CARGO fmt --all --check
stage format-fuzz $CARGO fmt --manifest-path fuzz/Cargo.toml --check
stage clippy $CARGO clippy --workspace --all-targets --locked -- --deny warnings
stage doc env RUSTDOCFLAGS=--deny=warnings $CARGO doc --workspace --no-deps --locked
stage wall scripts/wall.sh
stage features scripts/features.sh
stage package scripts/package.sh
stage deny scripts/deny.sh
skipped=$((skipped + $(grep -c '^not run: ' $logs/deny.log)))
if [ "$1" = all ]; then
    say "install: scripts/install.sh vm"
    follow install "$install" || give_up "scripts/install.sh vm failed; see its messages above"
fi
cargo_tests "$1"
if [ "$1" = all ]; then
    vm_tests
    logged fuzz nice scripts/fuzz.sh short >/dev/null &
    fuzz=$!
    # It is made for a terminal of 80 columns.
    [ -x $drivers/zerowire-demo ] && stage demo $drivers/zerowire-demo &&
        stage demo-width sh -c '! LC_ALL=C.UTF-8 grep -E "^.{81}" "$0"' $logs/demo.log
    hw_tests
    fuzz_tests
fi

say "summary: $(($(date +%s) - begin)) s; logs in $logs"
cat $logs/deny.log $logs/cargo.log 2>/dev/null | grep '^not run: ' | sort -u
[ -z "$not_run" ] || echo "$not_run"
[ ! -e $logs/vm.log ] || grep '^tried again: ' $logs/vm.log
printf '%s' "$failures"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
