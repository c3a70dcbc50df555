#!/bin/sh
# Zero-copy receive on a NIC that splits headers: what the tests of this project can't run without
# one.
#
#   scripts/hw-test.sh [OPTION...] IF QUEUE --peer HOST      HOST (for ssh) sends, over the NIC
#   scripts/hw-test.sh [OPTION...] IF QUEUE                  says what to run on another machine,
#                                                            and waits for it
#   scripts/hw-test.sh --rehearse                            all but the NIC, over loopback: tries
#                                                            this script
#
#   --address ADDRESS   the NIC's address that the peer connects to; default: its first IPv4
#                       address, else IPv6
#   --port PORT         TCP port (default 9999)
#   --bytes N           bytes to send (default 1000000000)
#   --rx-buf-len N      also with buffers of N bytes, in huge pages (Linux 7.0, some drivers)
#   --program FILE      the program (default target/release/zerowire)
#
# As root. It does, one after the other:
#   1. `zerowire doctor -i IF -q QUEUE` before and after the settings below
#   2. header split on, the queue taken out of RSS, flow rules for the port: with ethtool, put back
#      at the end
#   3. `zerowire recv --configure`, ended by itself and by SIGTERM: the settings change, and are the
#      same again afterwards (ethtool -g, -x); this comes before the settings of 2
#   4. registers the queue and receives; every byte is compared (SHA-256), and the ledger must say
#      that the NIC placed more than half. The kernel counts what it copies from Linux 7.2 on, and
#      never what it copies from beside the headers, which header split leaves empty: before that
#      nobody can tell, and the script says so
#   5. the same again at once: the queue was given back
# The queue restarts when it is registered and when it is given back: other flows on it lose frames
# for a moment.
#
# Apart from the registration it is the code that the guests' test `zcrx` runs (lab/vm). The exit
# status is 0 if all passed, 1 if not, 2 for wrong arguments, 3 if all bytes were right and it can't
# be told who placed them.
set -eu

die() { printf 'hw-test: error: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '/^#   scripts/,/^# As root/{/^# As root/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
say() { printf '\n== %s\n' "$*"; }

interface='' queue='' peer='' address='' port=9999 bytes=1000000000 rx_buf_len='' rehearse=no
program=$(dirname "$0")/../target/release/zerowire
while [ $# -gt 0 ]; do
    case $1 in
        --rehearse) rehearse=yes ;;
        --peer | --address | --port | --bytes | --rx-buf-len | --program)
            [ $# -ge 2 ] || usage
            case $1 in
                --peer) peer=$2 ;;
                --address) address=$2 ;;
                --port) port=$2 ;;
                --bytes) bytes=$2 ;;
                --rx-buf-len) rx_buf_len=$2 ;;
                --program) program=$2 ;;
            esac
            shift ;;
        -*) usage ;;
        *) if [ -z "$interface" ]; then interface=$1; elif [ -z "$queue" ]; then queue=$1; else usage; fi ;;
    esac
    shift
done
for number in "$port" "$bytes" "${rx_buf_len:-0}" "${queue:-0}"; do
    case $number in '' | *[!0-9]*) die "'$number' is no number" ;; esac
done
if [ $rehearse = yes ]; then
    [ -z "$interface" ] || usage
    interface=lo address=127.0.0.1
else
    [ -n "$queue" ] || usage
    [ "$(id -u)" = 0 ] || die "run this as root: it registers a queue, and changes the NIC's settings"
    command -v ethtool >/dev/null || die "ethtool is missing: install it (apt install ethtool)"
    [ -d "/sys/class/net/$interface" ] || die "there is no interface $interface; 'ip link' lists those that are"
fi
[ -x "$program" ] || die "no program $program: run 'make build', or give --program FILE"

if [ -z "$address" ]; then
    address=$(ip -o addr show dev "$interface" scope global | awk '{ sub(/\/.*/, "", $4); print $4 }' | head -n 1)
    [ -n "$address" ] || die "$interface has no address: give it one, or name it with --address"
fi

work=$(mktemp -d)
undo=$work/undo
: >"$undo"
receiver='' sender='' untold=''
# Settings go back in the opposite order.
restore() {
    status=$?
    trap '' INT TERM HUP
    [ -z "$receiver" ] || kill "$receiver" 2>/dev/null || :
    [ -z "$sender" ] || kill "$sender" 2>/dev/null || :
    wait 2>/dev/null || :
    if [ -s "$undo" ]; then
        say "settings go back"
        awk '{ line[NR] = $0 } END { for (i = NR; i > 0; i--) print line[i] }' "$undo" >"$work/back"
        while read -r line; do
            # A second command stands behind a bar.
            first=${line%% | *}
            second=''
            case $line in *' | '*) second=${line#* | } ;; esac
            echo "  $first"
            tries=0
            # The queue is given back some time after the program has ended; until then header split
            # stays on.
            # shellcheck disable=SC2086
            until $first 2>"$work/refusal"; do
                tries=$((tries + 1))
                if [ $tries -ge 50 ]; then
                    cat "$work/refusal" >&2
                    if [ -n "$second" ]; then
                        echo "  $second"
                        $second && break
                    fi
                    echo "hw-test: this failed; run it by hand: $first" >&2
                    status=1
                    break
                fi
                sleep 0.1
            done
        done <"$work/back"
    fi
    rm -rf "$work"
    exit "$status"
}
trap restore EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# change UNDO COMMAND...: runs a command and notes what takes it back. `FIRST | SECOND`: the second
# if the first is refused for good.
change() {
    back=$1
    shift
    echo "  $*"
    "$@" || die "'$*' failed: this NIC or its driver can't do it, see the doctor's lines"
    [ -z "$back" ] || echo "$back" >>"$undo"
}

# The value of a line `NAME: VALUE` in the current settings of `ethtool -g`.
ring_setting() {
    ethtool -g "$interface" 2>/dev/null | awk -F ':[ \t]*' -v name="$1" '
        /^Current/ { current = 1 }
        current && $1 == name { print $2; exit }'
}

# A flow rule for the port; ethtool tells the number under which it can be deleted.
steer() {
    echo "  ethtool -N $interface flow-type $1 dst-port $port action $queue"
    text=$(ethtool -N "$interface" flow-type "$1" dst-port "$port" action "$queue") ||
        die "no flow rule for $1: 'ethtool -K $interface ntuple on' may be refused by this driver"
    rule=$(printf '%s\n' "$text" | sed -n 's/.*ID \([0-9]*\).*/\1/p')
    [ -n "$rule" ] || die "ethtool didn't tell the number of the new rule: $text"
    echo "ethtool -N $interface delete $rule" >>"$undo"
}

set_up() {
    split=$(ring_setting 'TCP data split')
    case $split in
        on) ;;
        # A driver that tells "off" of its own choice may refuse to be told it (fbnic).
        off) change "ethtool -G $interface tcp-data-split off | ethtool -G $interface tcp-data-split auto" \
            ethtool -G "$interface" tcp-data-split on ;;
        *) change "ethtool -G $interface tcp-data-split auto" ethtool -G "$interface" tcp-data-split on ;;
    esac
    thresh=$(ring_setting 'HDS thresh')
    case $thresh in
        '' | 0 | n/a) ;;
        *) change "ethtool -G $interface hds-thresh $thresh" ethtool -G "$interface" hds-thresh 0 ;;
    esac
    # Entries of the table: "  0:   0 1 2 …"; the default one counts round.
    table=$(ethtool -x "$interface" 2>/dev/null | awk -v q="$queue" '
        /^ +[0-9]+:/ { for (i = 2; i <= NF; i++) { t[n++] = $i; if ($i > most) most = $i; if ($i == q) named = 1 } }
        END {
            if (!named) { print "apart"; exit }
            for (i = 0; i < n; i++) if (t[i] != i % (most + 1)) { print "own"; exit }
            print "default " most + 1
        }')
    case $table in
        apart) ;;
        own) die "the RSS table of $interface names queue $queue and isn't the default one: take the queue out of it yourself (ethtool -X)" ;;
        'default 1') die "$interface has one queue: 'ethtool -L $interface combined 2' gives it a second one" ;;
        *)
            count=${table#default }
            if [ "$queue" = $((count - 1)) ]; then
                change "ethtool -X $interface default" ethtool -X "$interface" equal $((count - 1))
            elif [ "$queue" = 0 ]; then
                change "ethtool -X $interface default" ethtool -X "$interface" start 1 equal $((count - 1))
            else
                die "take the last queue ($((count - 1))) or queue 0 of $interface, so that RSS can leave it out"
            fi ;;
    esac
    case $(ethtool -k "$interface" | sed -n 's/^ntuple-filters: \(on\|off\).*/\1/p') in
        off) change "ethtool -K $interface ntuple off" ethtool -K "$interface" ntuple on ;;
    esac
    case $address in *:*) steer tcp6 ;; *) steer tcp4 ;; esac
}

# The bytes: numbers, one a line, which every machine counts alike.
lines=$((bytes / 2 + 1))
pattern() { seq 1 "$lines" | head -c "$bytes"; }

send_line() { echo "seq 1 $lines | head -c $bytes >/dev/tcp/$address/$port"; }

# start ARGUMENT...: the receiver, until it listens.
start() {
    ! listens || die "something else listens at port $port: give another one with --port"
    "$program" recv -p "$port" --json "$work/said" "$@" 2>"$work/words" &
    receiver=$!
    tries=0
    until listens; do
        tries=$((tries + 1))
        kill -0 $receiver 2>/dev/null || { receiver=''; die "it didn't start: $(cat "$work/words")"; }
        [ $tries -lt 200 ] || die "it doesn't listen: $(cat "$work/words")"
        sleep 0.1
    done
}

# What `recv --configure` may change. An interface without RSS has no table.
settings() {
    ethtool -g "$interface"
    ethtool -x "$interface" || :
}

# configured END: `recv --configure` until a connection from this machine ends it, or SIGTERM does.
configured() {
    say "zerowire recv --configure, ended by $1"
    settings >"$work/before" 2>&1 || die "ethtool -g $interface: $(cat "$work/before")"
    start --timeout 60 -i "$interface" -q "$queue" --configure
    sed 's/^/  /' "$work/words"
    [ "$(ring_setting 'TCP data split')" = on ] || die "header split is not on while recv --configure runs"
    case $1 in
        SIGTERM) kill -TERM $receiver; expected=143 ;;
        *) bash -c ": >/dev/tcp/$address/$port" || die "no connection to $address"; expected=0 ;;
    esac
    status=0
    wait $receiver || status=$?
    receiver=''
    [ $status = $expected ] || die "zerowire recv ended with status $status, not $expected: $(cat "$work/words")"
    settings >"$work/after" 2>&1 || :
    diff "$work/before" "$work/after" || die "recv --configure left the settings above changed (<: before, >: after)"
    echo "  ethtool -g and -x are as before"
}

# receive NAME ARGUMENT...: one transfer; every byte, and who placed it.
receive() {
    name=$1
    shift
    say "$name: zerowire recv $*"
    start --timeout 600 --to "$work/got" "$@"
    if [ $rehearse = yes ]; then
        bash -c "$(send_line)" &
        sender=$!
    elif [ -n "$peer" ]; then
        ssh "$peer" "bash -c '$(send_line)'" &
        sender=$!
    else
        echo "run this on the other machine, in bash:"
        echo "  $(send_line)"
    fi
    wait $receiver || { receiver=''; die "zerowire recv failed: $(cat "$work/words")"; }
    receiver=''
    [ -z "$sender" ] || wait "$sender" || { sender=''; die "the sender failed"; }
    sender=''
    there=$(sha256sum <"$work/got")
    [ "$there" = "$wanted" ] || die "$name: the bytes that came are others: $(wc -c <"$work/got") of $bytes, in $work/got"
    zero=$(number zero_copied_bytes) copied=$(number copied_bytes)
    is=$(sed -n 's/^  "zero_copied_is": "\([a-z_]*\)",\{0,1\}$/\1/p' "$work/said")
    echo "  every byte is right"
    sed -n 's/^ *"path": "\(.*\)",$/  \1/p' "$work/said"
    placed || die "$name: the NIC placed nothing: header split doesn't work, or the flow came through another queue"
}

# Whether the NIC placed bytes, as far as $is, $zero and $copied tell. Copies from beside the
# headers are not in $copied: with header split on they can't be more than half of a bulk transfer.
# In a rehearsal all must be known as copied.
placed() {
    case $is in
        exact) echo "  placed by the NIC: $zero, copied by the kernel: $copied" ;;
        at_most) echo "  placed by the NIC: at most $zero, copied by the kernel: at least $copied" ;;
        *) echo "  placed by the NIC: can't be told on this kernel (Linux 7.2 is the first to count what it copies)" ;;
    esac
    if [ $rehearse = yes ]; then
        [ "$is" = exact ] || die "the rehearsal doesn't know who placed its bytes: '$is'"
        return
    fi
    case $is in
        exact) [ "$zero" -gt 0 ] ;;
        at_most)
            [ "$zero" -gt 0 ] || return 1
            [ "$zero" -gt "$copied" ] || untold="${untold:+$untold, }$name (at most $zero of $bytes bytes)" ;;
        *) untold="${untold:+$untold, }$name" ;;
    esac
}

# Whether anybody listens at the port.
listens() {
    hex=$(printf '%04X' "$port")
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk -v p=":$hex" '$2 ~ p "$" && $4 == "0A" { found = 1 } END { exit !found }'
}

number() { sed -n "s/^  \"$1\": \([0-9]*\),\{0,1\}\$/\1/p" "$work/said" | head -n 1; }

say "the pattern: $bytes bytes"
wanted=$(pattern | sha256sum)

if [ $rehearse = yes ]; then
    receive "rehearsal over loopback" --bind "$address"
    say "the script works; what a NIC does was not tried"
    exit 0
fi
say "zerowire doctor -i $interface -q $queue, as it is"
"$program" doctor -i "$interface" -q "$queue" || echo "(some of it is set up now)"
configured "a connection"
configured SIGTERM
say "settings"
set_up
say "zerowire doctor -i $interface -q $queue, set up"
"$program" doctor -i "$interface" -q "$queue" || die "the queue can't be registered: see the lines above"
receive "the queue" -i "$interface" -q "$queue"
receive "once more" -i "$interface" -q "$queue"
receive "huge pages" -i "$interface" -q "$queue" --huge
[ -z "$rx_buf_len" ] ||
    receive "buffers of $rx_buf_len bytes" -i "$interface" -q "$queue" --huge --rx-buf-len "$rx_buf_len"
if [ -n "$untold" ]; then
    say "every byte was right; whether the NIC placed any can't be told on this kernel: $untold"
    exit 3
fi
say "all passed"
