#!/bin/sh
# vhost-net of the kernel beside `zerowire net`: TCP between this machine and a guest under KVM,
# both ways.
#
#   scripts/vhost-net.sh [OPTION...]
#
#   --rounds N          rounds (default 9); both back ends take turns in each
#   --seconds N         seconds of a transfer (default 5)
#   --program FILE      the program (default target/release/zerowire)
#   --kernel FILE       the guest's kernel; default, for both: those of `scripts/install.sh vm`
#   --modules FOLDER    uncompressed modules of it
#   --rehearse          without KVM and vhost-net: QEMU emulates the CPU and the device. Tries this
#                       script; its figures mean nothing
#
# As root. It makes a network namespace with two taps, and boots a guest of its own on each: one
# whose device is vhost-net, one whose device is zerowire. A guest is a kernel with busybox and
# iperf3 in its memory. Then iperf3 sends to each guest and receives from it, in turns. It prints,
# for each direction, the medians of
#   Gb/s         what iperf3 received
#   CPU s/GB     of the back end: the thread vhost-PID of QEMU, or all threads of zerowire's
#                processes; the vCPUs are left out
#   ratios       vhost-net's figure divided by zerowire's of the same round, with the quartiles
# The exit status is 0 if all transfers ran, 1 if one failed, and 2 for wrong arguments or if
# something is missing here.
set -eu

usage() { sed -n '/^#   scripts/,/^# As root/{/^# As root/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
die() { printf 'vhost-net: error: %s\n' "$*" >&2; exit 1; }
say() { printf 'vhost-net: %s\n' "$*" >&2; }

cache=${ZEROWIRE_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/zerowire}
rounds=9 seconds=5 rehearse=no kernel=$cache/kernel-7/current/vmlinuz modules=$cache/kernel-7/current/modules
program=$(dirname "$0")/../target/release/zerowire
arguments=$*
while [ $# -gt 0 ]; do
    case $1 in
        --rehearse) rehearse=yes ;;
        --rounds | --seconds | --program | --kernel | --modules)
            [ $# -ge 2 ] || usage
            case $1 in
                --rounds) rounds=$2 ;;
                --seconds) seconds=$2 ;;
                --program) program=$2 ;;
                --kernel) kernel=$2 ;;
                --modules) modules=$2 ;;
            esac
            shift ;;
        *) usage ;;
    esac
    shift
done
for number in "$rounds" "$seconds"; do
    case $number in '' | 0 | *[!0-9]*) say "'$number': give a number above 0"; exit 2 ;; esac
done

# What is missing is named at once, not one by one.
missing=
lack() { missing="$missing
  $*"; }
[ "$(id -u)" = 0 ] || lack "root: run it with sudo"
if [ $rehearse = no ]; then
    [ -w /dev/kvm ] || lack "/dev/kvm: a machine with KVM, or nested virtualisation (modprobe kvm_amd or kvm_intel)"
    [ -w /dev/vhost-net ] || lack "/dev/vhost-net: modprobe vhost_net"
fi
[ -c /dev/net/tun ] || lack "/dev/net/tun: modprobe tun"
for tool in qemu-system-x86_64 iperf3 busybox ip unshare ldd xz; do
    command -v $tool >/dev/null || lack "$tool: scripts/install.sh vm installs it"
done
[ -f "$kernel" ] || lack "the guest's kernel $kernel: scripts/install.sh vm, or --kernel"
[ -d "$modules" ] || lack "the kernel's modules $modules: scripts/install.sh vm, or --modules"
[ -x "$program" ] || lack "$program: make build"
if [ -n "$missing" ]; then
    say "it can't run here. Missing:$missing"
    exit 2
fi

# Everything below happens in a network namespace, which goes with the last process in it.
if [ "${ZEROWIRE_VHOST_NET_INSIDE:-}" != yes ]; then
    # shellcheck disable=SC2086
    ZEROWIRE_VHOST_NET_INSIDE=yes exec unshare -n "$0" $arguments
fi

folder=$(mktemp -d)
started=
cleanup() {
    for pid in $started; do kill "$pid" 2>/dev/null || :; done
    wait
    rm -rf "$folder"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

# A guest: busybox, iperf3 with its libraries, and the modules of a virtio-net device.
image() {
    root=$folder/root
    mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/modules"
    cp "$(command -v busybox)" "$root/bin/busybox"
    for file in "$(command -v iperf3)" $(ldd "$(command -v iperf3)" | grep -o '/[^ )]*'); do
        mkdir -p "$root$(dirname "$file")"
        cp -L "$file" "$root$file"
    done
    # In the order of loading; what the kernel has built in has no file.
    for name in virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net; do
        file=$(find "$modules" -name "$name.ko*" | head -n 1)
        case $file in
            '') continue ;;
            *.xz) xz -dc "$file" >"$root/modules/$name.ko" ;;
            *) cp "$file" "$root/modules/$name.ko" ;;
        esac
        echo "$name" >>"$root/modules/list"
    done
    cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for name in $(cat /modules/list); do insmod /modules/$name.ko; done
address=$(sed -n 's/.*address=\([0-9.]*\).*/\1/p' /proc/cmdline)
ip link set lo up
ip address add "$address/24" dev eth0
ip link set eth0 up
while :; do iperf3 -s; done
INIT
    chmod 755 "$root/init"
    (cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$folder/initrd"
}

accel='-accel kvm -cpu host' vhost=on vectors=
if [ $rehearse = yes ]; then
    # QEMU 7.2 can't give MSI-X of such a device to an emulated CPU.
    accel='-accel tcg,thread=multi -cpu max' vhost=off vectors=,vectors=0
fi

# boot NAME ADDRESS DEVICE...: starts a guest; its process is in $qemu
boot() {
    name=$1 address=$2
    shift 2
    # shellcheck disable=SC2086
    qemu-system-x86_64 -machine q35 $accel -smp 2 -m 512M -nodefaults -nographic -no-reboot \
        -serial "file:$folder/$name.console" -kernel "$kernel" -initrd "$folder/initrd" \
        -append "console=ttyS0 quiet panic=-1 address=$address" \
        -object memory-backend-memfd,id=mem,size=512M,share=on -numa node,memdev=mem "$@" 2>"$folder/$name.log" &
    qemu=$!
    started="$started $qemu"
}

tap() {
    ip tuntap add "$1" mode tap vnet_hdr
    ip address add "$2/24" dev "$1"
    ip link set "$1" up
}

# await NAME ADDRESS: until the guest's iperf3 answers
await() {
    for _ in $(seq 120); do
        iperf3 -c "$2" -n 1K --connect-timeout 500 >/dev/null 2>&1 && return
        sleep 0.5
    done
    tail -n 5 "$folder/$1.log" "$folder/$1.console" >&2
    die "the guest on $1 doesn't answer"
}

# cpu_ns NAME: CPU time of the back end so far
cpu_ns() {
    sum=0
    case $1 in
        # The program, and the process that serves the VM.
        zerowire) tasks=$(for pid in "$back_end" $(cat /proc/"$back_end"/task/*/children); do printf '%s ' /proc/"$pid"/task/*/; done) ;;
        # A thread of QEMU from Linux 6.4 on, before that of the kernel.
        *) tasks=$(grep -lx "vhost-$vhost_qemu" /proc/"$vhost_qemu"/task/*/comm /proc/[0-9]*/comm 2>/dev/null |
            sed 's/comm$//' || :)
            [ $rehearse = no ] || tasks=/proc/$vhost_qemu/ ;;
    esac
    for task in $tasks; do
        read -r ran _ <"${task}schedstat" || ran=0
        sum=$((sum + ran))
    done
    echo "$sum"
}

# transfer NAME ADDRESS WAY: a line `NAME WAY Gb/s CPU-s/GB`
transfer() {
    before=$(cpu_ns "$1")
    [ "$3" = tx ] && reverse=-R || reverse=
    # shellcheck disable=SC2086
    iperf3 -c "$2" -t "$seconds" $reverse -J >"$folder/json" || die "iperf3 with the guest on $1 failed: $(cat "$folder/json")"
    after=$(cpu_ns "$1")
    bytes=$(grep -A 12 '"sum_received"' "$folder/json" | sed -n 's/.*"bytes":[^0-9]*\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$bytes" ] && [ "$bytes" -gt 0 ] || die "iperf3 with the guest on $1 received nothing"
    awk -v n="$1" -v w="$3" -v b="$bytes" -v s="$seconds" -v c=$((after - before)) \
        'BEGIN { printf "%s %s %.3f %.4f\n", n, w, b * 8e-9 / s, c / b }'
}

say "$(uname -sr), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs"
image
ip link set lo up
tap zwvhost 198.18.1.1
boot vhost-net 198.18.1.2 \
    -netdev "tap,id=n,ifname=zwvhost,script=no,downscript=no,vhost=$vhost" -device "virtio-net-pci,netdev=n,romfile="
vhost_qemu=$qemu
tap zwours 198.18.2.1
"$program" net --socket "$folder/socket" --port tap:zwours --log warn >"$folder/zerowire.out" 2>"$folder/zerowire.log" &
back_end=$!
started="$started $back_end"
for _ in $(seq 50); do
    [ -S "$folder/socket" ] && break
    sleep 0.1
done
boot zerowire 198.18.2.2 -chardev "socket,id=c,path=$folder/socket" -netdev vhost-user,id=n,chardev=c \
    -device "virtio-net-pci,netdev=n,romfile=$vectors"
await vhost-net 198.18.1.2
await zerowire 198.18.2.2
if [ $rehearse = no ] && [ "$(cpu_ns vhost-net)" = 0 ]; then
    die "the thread vhost-$vhost_qemu can't be found: vhost-net doesn't serve the guest, or /proc hides its threads"
fi

round=0
while [ $round -lt "$rounds" ]; do
    round=$((round + 1))
    say "round $round of $rounds"
    for way in tx rx; do
        if [ $((round % 2)) = 0 ]; then
            transfer zerowire 198.18.2.2 $way
            transfer vhost-net 198.18.1.2 $way
        else
            transfer vhost-net 198.18.1.2 $way
            transfer zerowire 198.18.2.2 $way
        fi | sed "s/^/$round /" >>"$folder/results" || exit 1
    done
done
[ "$(wc -l <"$folder/results")" = $((4 * rounds)) ] || die "a transfer failed; see above"

[ $rehearse = no ] || echo "A rehearsal: the device called vhost-net is QEMU's own, the CPU is emulated. The figures mean nothing."
echo "TCP of $seconds s, medians of $rounds rounds. tx: from the guest. / zerowire: ratios of one round, quartiles."
awk '
    function quantile(values, n, q,    i, j, t, place, low) {
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && values[j - 1] > values[j]; j--) { t = values[j]; values[j] = values[j - 1]; values[j - 1] = t }
        place = 1 + q * (n - 1); low = int(place)
        return values[low] + (low < n ? (values[low + 1] - values[low]) * (place - low) : 0)
    }
    { rate[$2, $3, $1] = $4; cpu[$2, $3, $1] = $5; if ($1 > rounds) rounds = $1 }
    END {
        printf "%-4s %-10s %8s %9s %16s %21s %17s %21s\n", "way", "back end", "Gb/s", "CPU s/GB", "CPU / zerowire", "quartiles", "rate / zerowire", "quartiles"
        split("tx rx", ways, " "); split("vhost-net zerowire", names, " ")
        for (w = 1; w <= 2; w++) for (b = 1; b <= 2; b++) {
            way = ways[w]; name = names[b]
            for (r = 1; r <= rounds; r++) {
                a[r] = rate[name, way, r]; c[r] = cpu[name, way, r]
                ra[r] = a[r] / rate["zerowire", way, r]; rc[r] = c[r] / cpu["zerowire", way, r]
            }
            printf "%-4s %-10s %8.2f %9.3f", way, name, quantile(a, rounds, 0.5), quantile(c, rounds, 0.5)
            if (b == 1) printf " %16.2f %21s %17.2f %21s", quantile(rc, rounds, 0.5), \
                sprintf("%.2f..%.2f", quantile(rc, rounds, 0.25), quantile(rc, rounds, 0.75)), quantile(ra, rounds, 0.5), \
                sprintf("%.2f..%.2f", quantile(ra, rounds, 0.25), quantile(ra, rounds, 0.75))
            printf "\n"
        }
    }' "$folder/results"
