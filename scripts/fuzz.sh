#!/bin/sh
# Builds and runs the fuzz targets with the stable toolchain.
#
#   scripts/fuzz.sh long [TARGET...]    FUZZ_SECONDS for each (600); the corpus is kept in
#                                       fuzz/corpus
#   scripts/fuzz.sh short [TARGET...]   FUZZ_SECONDS for each (4, 6 or 15); the corpus begins anew
#                                       with the seeds
#   scripts/fuzz.sh build               only builds them
#
# The first two begin with the inputs of fuzz/seeds. The last line is `fuzz-tests: N passed, N
# failed, 0 skipped`. An input that fails a target is kept in fuzz/artifacts; the status is not 0
# then. Run it again with
#
#   target/fuzz/HOST/release/TARGET fuzz/artifacts/INPUT
#
# All run with AddressSanitizer, as cargo-fuzz has it. The stable toolchain has its runtime library,
# and takes the option, which is not stable, with RUSTC_BOOTSTRAP=1.
set -u

cd "$(dirname "$0")/.." || exit 1
PATH=$PATH:${HOME:-/root}/.cargo/bin
export PATH
CARGO=${CARGO:-cargo}
all="vsock_packet vsock_muxer vsock_mapped net_transmit net_receive net_offload guard metadata vhost_user_messages \
vhost_user_session capture packet_offload recv_multishot recv_zcrx control captured_stream child_words texts"

mode=${1:-}
case $mode in
    long | short | build) ;;
    *) echo "usage: $0 long|short|build [TARGET...]" >&2; exit 2 ;;
esac
shift
targets=${*:-$all}
command -v c++ >/dev/null || {
    echo "$0: libFuzzer is built from C++ source and there is no c++; run scripts/install.sh base" >&2
    exit 1
}

host=$(rustc -vV | sed -n 's/^host: //p')
# The coverage that libFuzzer looks at (clang's SanitizerCoverage); with --target, so that only the
# targets have it.
RUSTFLAGS="--cfg fuzzing -C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
-C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
-C llvm-args=-sanitizer-coverage-trace-compares -Z sanitizer=address"
export RUSTFLAGS
# Short runs take less time than building for speed. At this level they run fewer inputs in the same
# time, some a third as many, and reach about as large a share of the edges.
[ "$mode" = long ] || export CARGO_PROFILE_RELEASE_OPT_LEVEL=1
echo "fuzz: building"
RUSTC_BOOTSTRAP=1 $CARGO build --release --locked --manifest-path fuzz/Cargo.toml --target "$host" --target-dir target/fuzz || {
    echo "fuzz: the targets can't be built" >&2
    echo "fuzz-tests: 0 passed, 1 failed, 0 skipped"
    exit 1
}
unset RUSTFLAGS CARGO_PROFILE_RELEASE_OPT_LEVEL
[ "$mode" != build ] || exit 0

mkdir -p fuzz/artifacts target/fuzz/logs

# run TARGET: for its time; says what came of it in one line with `: ok, ` or `: FAILED: `.
run() {
    t=$1
    case $mode in
        long) corpus=fuzz/corpus/$t seconds=600 ;;
        short)
            corpus=target/fuzz/short/$t
            rm -rf "$corpus"
            # The parsers of many words need longer to reach most of what they reach at all.
            case $t in
                child_words | control | texts) seconds=15 ;;
                capture | metadata | vhost_user_session) seconds=6 ;;
                *) seconds=4 ;;
            esac ;;
    esac
    seconds=${FUZZ_SECONDS:-$seconds}
    mkdir -p "$corpus" "fuzz/seeds/$t"
    log=target/fuzz/logs/$t.log
    # What the device logs and panics say goes into the log file.
    if target/fuzz/"$host"/release/"$t" -max_total_time="$seconds" -max_len=4096 -timeout=30 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="fuzz/artifacts/$t-" "$corpus" "fuzz/seeds/$t" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        case $runs in
            '' | 0) echo "fuzz: $t: FAILED: it ended without a run (see $log)" ;;
            *) echo "fuzz: $t: ok, $runs inputs in $seconds s" ;;
        esac
    else
        input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
        echo "fuzz: $t: FAILED: input ${input:-none written}; messages in $log
$(grep -E 'panicked at|ERROR:' -A 2 "$log" | head -n 12)"
    fi
}

# Each target has one thread: as many at once as there are CPUs. What a shell runs beside itself
# does not hear of an interrupt.
trap 'trap "" TERM; kill 0; exit 130' INT
results=target/fuzz/logs/results
: >$results
lanes=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
lane=0
while [ "$lane" -lt "$lanes" ]; do
    n=0
    for t in $targets; do
        [ $((n % lanes)) != "$lane" ] || run "$t"
        n=$((n + 1))
    done | tee -a $results &
    lane=$((lane + 1))
done
wait
passed=$(grep -c '^fuzz: [a-z_]*: ok, ' $results)
# One without a result has failed, too.
failed=$(($(echo "$targets" | wc -w) - passed))
rmdir fuzz/artifacts 2>/dev/null
echo "fuzz-tests: $passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
