#!/bin/sh
# Installs what the demo and the tests need and this machine lacks.
#
#   scripts/install.sh base       for `make demo-soft` and the tests without QEMU
#   scripts/install.sh packages   all Debian packages that the next one installs
#   scripts/install.sh vm         the above, and QEMU 7.2, QEMU 10, libvirt, two Debian kernels, a
#                                 Debian root
#   scripts/install.sh vm --update   also looks for newer kernels and a newer QEMU 10
#
# Debian packages are installed with apt (as root, or through sudo). The guest
# kernels and QEMU 10 are only downloaded and unpacked, never installed: they go
# to $ZEROWIRE_CACHE (default ${XDG_CACHE_HOME:-$HOME/.cache}/zerowire):
#
#   kernel-6.1/VERSION, kernel-7/VERSION, qemu-10/VERSION, debian-12/VERSION,
#   each with a link `current`
#
# They come from the mirror that this machine's own apt uses for Debian, with the
# same options and signature checks; only the suite's name is changed. The lists of
# the other suites are kept in the cache, so that the machine's own stay as they are.
set -eu

say() { printf 'install: %s\n' "$*"; }
die() { printf 'install: error: %s\n' "$*" >&2; exit 1; }

mode=${1:-}
update=no
[ "${2:-}" = --update ] && update=yes
case $mode in
    base | packages | vm) ;;
    *) die "unknown mode '$mode'; use: $0 base|packages|vm [--update]" ;;
esac

[ -r /etc/os-release ] && . /etc/os-release
[ "${ID:-}" = debian ] && [ "${VERSION_ID:-}" = 12 ] ||
    say "note: this is ${PRETTY_NAME:-an unknown system}; the script was written for Debian 12"
codename=${VERSION_CODENAME:-bookworm}
PATH=$PATH:/usr/sbin:/sbin
[ -n "${ZEROWIRE_CACHE:-}" ] || [ -n "${XDG_CACHE_HOME:-}" ] || [ -n "${HOME:-}" ] ||
    die "HOME is not set; set ZEROWIRE_CACHE to a folder for kernels and QEMU"
cache=${ZEROWIRE_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/zerowire}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "'$*' needs root: run this script as root or install sudo"
    fi
}

# Debian packages ---------------------------------------------------------

# need PACKAGE PROGRAM: notes the package as missing if the program is.
missing=
need() {
    command -v "$2" >/dev/null || missing="$missing $1"
}

apt_update() {
    say "reading the package lists (apt-get update)"
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update ||
        die "apt-get update failed; check the network and /etc/apt/sources.list*"
}

# Network traffic of the update is spared unless a first try fails.
apt_install() {
    say "installing Debian packages:$*"
    opts="-qq -y --no-install-recommends -o DPkg::Lock::Timeout=300"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    as_root apt-get $opts install "$@" >/dev/null 2>&1 && return
    apt_update
    # shellcheck disable=SC2086
    as_root apt-get $opts install "$@" >/dev/null ||
        die "apt-get could not install:$*; see its messages above"
}

need iproute2 ip
need iperf3 iperf3
need ncat ncat
need curl curl
need tcpreplay tcpreplay
need tcpdump tcpdump
need tshark tshark
need iputils-ping ping
need make make
need binutils objdump
need pkg-config pkg-config
need checkpolicy checkmodule
# libFuzzer is built from C++ source.
need g++ c++
if ! command -v cc >/dev/null; then missing="$missing gcc libc6-dev"; fi
if [ "$mode" != base ]; then
    need qemu-system-x86 qemu-system-x86_64
    need xz-utils xz
    # No service comes with these two: that is libvirt-daemon-system.
    need libvirt-daemon libvirtd
    need libvirt-clients virsh
    need busybox-static busybox
    need nftables nft
    # The root of a guest with systemd, for the test of the packages.
    need mmdebstrap mmdebstrap
    need e2fsprogs mke2fs
fi
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086
    apt_install $missing
    say "installed:$missing"
else
    say "Debian packages: nothing missing"
fi

command -v cargo >/dev/null || [ -x "${HOME:-}/.cargo/bin/cargo" ] ||
    die "no cargo: install stable Rust 1.91 or newer with rustup, then run this again"
[ -c /dev/net/tun ] ||
    say "note: no /dev/net/tun here; load the tun module (modprobe tun) before you use tap ports"

[ "$mode" = vm ] || exit 0

# Kernels and QEMU 10, unpacked into the cache ------------------------------

apt_dir=$cache/apt

# The fields of the machine's own apt entry for Debian $codename/main: file:number.
# `apt-get indextargets` needs the lists, for it is their Release file that says
# who is Debian.
debian_entry() {
    apt-get indextargets --format '$(SOURCESENTRY)' \
        'Created-By: Packages' 'Origin: Debian' "Codename: $codename" 'Component: main' | head -n 1
}

# Prints the machine's entry for Debian with other suites, as a one-line or deb822
# source. $1: file:number, then the suites. For one-line files the number is the
# line, for deb822 files it is the stanza.
entry_for_suites() {
    file=${1%:*} number=${1##*:}
    shift
    case $file in
        *.sources)
            grep -v '^#' "$file" | awk -v n="$number" -v suites="$*" '
                BEGIN { RS = ""; FS = "\n" }
                NR == n {
                    print "Suites: " suites "\nTypes: deb\nComponents: main"
                    skip = 0
                    for (i = 1; i <= NF; i++) {
                        if ($i !~ /^[ \t]/) skip = ($i ~ /^(Suites|Types|Components|Enabled|Architectures):/)
                        if (!skip) print $i
                    }
                }' ;;
        *)
            for suite in "$@"; do
                awk -v n="$number" -v suite="$suite" '
                    NR == n {
                        line = $0
                        sub(/^[ \t]*deb(-src)?[ \t]+/, "", line)
                        options = ""
                        if (match(line, /^\[[^]]*\]/)) {
                            options = substr(line, 1, RLENGTH) " "
                            line = substr(line, RLENGTH + 1)
                        }
                        split(line, part, " ")
                        print "deb " options part[1], suite, "main"
                    }' "$file"
            done ;;
    esac
}

private_apt() {
    program=$1
    shift
    "$program" -o Dir::Etc::SourceList="$apt_dir/$list_name" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State="$apt_dir/state" -o Dir::State::status=/var/lib/dpkg/status \
        -o Dir::Cache="$apt_dir/cache" -o APT::Sandbox::User="$(id -un)" \
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o APT::Get::List-Cleanup=true -o APT::Update::Post-Invoke::= "$@"
}

private_ready=no
private_lists() {
    [ $private_ready = yes ] && return
    entry=$(debian_entry)
    if [ -z "$entry" ]; then
        apt_update
        entry=$(debian_entry)
    fi
    [ -n "$entry" ] || die "apt has no entry for Debian $codename main; add one to /etc/apt/sources.list"
    mkdir -p "$apt_dir/state/lists/partial" "$apt_dir/cache/archives/partial"
    case ${entry%:*} in *.sources) list_name=zerowire.sources ;; *) list_name=zerowire.list ;; esac
    entry_for_suites "$entry" "$codename" "$codename-backports" trixie-backports >"$apt_dir/$list_name"
    say "reading the lists of $codename-backports and trixie-backports into $apt_dir"
    private_apt apt-get -qq update || die "these lists could not be read; see the messages above"
    private_ready=yes
}

# Downloads packages and unpacks them to a folder that appears only when complete.
# $1: the folder; then the packages (NAME or NAME=VERSION).
unpack() {
    target=$1
    shift
    work=$target.part.$$
    rm -rf "$work"
    mkdir -p "$work/deb" "$work/root"
    (cd "$work/deb" && private_apt apt-get -qq download "$@") || die "download failed: $*"
    for deb in "$work"/deb/*.deb; do
        dpkg -x "$deb" "$work/root" || die "cannot unpack $deb"
    done
    rm -rf "$work/deb" "$work/root/usr/share/doc" "$work/root/usr/share/man"
}

finish() {
    rm -rf "$target"
    mv "$work/root" "$target"
    rmdir "$work"
    ln -sfn "$(basename "$target")" "$(dirname "$target")/current"
    say "unpacked $target ($(du -sm "$target" | cut -f1) MiB)"
}

version_of() {
    private_apt apt-cache show --no-all-versions "$1" | sed -n 's/^Version: //p' | head -n 1
}

# The newest package whose name matches a pattern, by version order.
newest() {
    private_apt apt-cache pkgnames "$1" | grep -E "$2" | sort -V | tail -n 1
}

have() {
    [ -e "$cache/$1/current/$2" ] && [ $update = no ]
}

# $1: name in the cache, $2: the newest matching image package, $3: its modules' package or none
kernel() {
    [ -n "$2" ] || die "no kernel package found for $1 in the mirror's lists"
    version=$(version_of "$2")
    [ -e "$cache/$1/$version/vmlinuz" ] && { ln -sfn "$version" "$cache/$1/current"; say "$1: $version is the newest"; return; }
    say "$1: downloading $2 $version"
    # shellcheck disable=SC2086
    unpack "$cache/$1/$version" $2 $3
    # The kernel image is in boot/ or, in newer packages, in the modules' folder.
    image=$(find "$work/root" -name 'vmlinuz*' -type f | head -n 1)
    [ -n "$image" ] || die "$2 holds no vmlinuz"
    mv "$image" "$work/root/vmlinuz"
    modules=$(find "$work/root" -type d -path '*/lib/modules/*' -name kernel -prune | head -n 1)
    [ -n "$modules" ] || die "$2 $3 hold no modules"
    basename "$(dirname "$modules")" >"$work/root/release"
    mv "$modules" "$work/root/modules"
    rm -rf "$work/root/boot" "$work/root/lib" "$work/root/usr"
    finish
}

if have kernel-6.1 release; then
    say "kernel 6.1: $(cat "$cache/kernel-6.1/current/release")"
else
    private_lists
    kernel kernel-6.1 "$(newest linux-image-6.1. '^linux-image-6\.1\.[0-9]+-[0-9]+-cloud-amd64$')" ""
fi

if have kernel-7 release; then
    say "kernel 7: $(cat "$cache/kernel-7/current/release")"
else
    private_lists
    image=$(newest linux-binary-7. '^linux-binary-7\..*-cloud-amd64$')
    kernel kernel-7 "$image" "linux-modules-${image#linux-binary-}"
fi

if have qemu-10 usr/bin/qemu-system-x86_64; then
    say "QEMU 10: $(basename "$(readlink "$cache/qemu-10/current")")"
else
    private_lists
    version=$(version_of "qemu-system-x86/$codename-backports")
    case $version in *:10.*) ;; *) die "$codename-backports has QEMU '$version', not 10" ;; esac
    folder=$(printf %s "$version" | tr ':~+' '---')
    # What an installation would add is what the unpacked copy needs beside it.
    packages=$(private_apt apt-get -s --no-install-recommends install \
        "qemu-system-x86/$codename-backports" "qemu-system-common/$codename-backports" \
        "qemu-system-data/$codename-backports" "seabios/$codename-backports" |
        sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/\1=\2/p')
    [ -n "$packages" ] || die "apt could not work out what QEMU $version needs"
    say "QEMU 10: downloading $(printf %s "$packages" | tr '\n' ' ')"
    # shellcheck disable=SC2086
    unpack "$cache/qemu-10/$folder" $packages
    finish
fi
if have debian-12 root.tar.gz; then
    say "Debian root: $(basename "$(readlink "$cache/debian-12/current")")"
else
    private_lists
    # Of this suite alone, with the machine's own way to its mirror.
    base=$apt_dir/base.${list_name##*.}
    entry_for_suites "$entry" "$codename" >"$base"
    version=$(version_of base-files)
    target=$cache/debian-12/$version
    say "Debian root: making $target"
    rm -rf "$target.part" && mkdir -p "$target.part"
    apt-config dump | grep '^Acquire::' >"$apt_dir/acquire.conf"
    mmdebstrap --quiet --aptopt="$apt_dir/acquire.conf" --variant=minbase --include=systemd,systemd-sysv,dbus,udev,iproute2,apparmor \
        "$codename" "$target.part/root.tar.gz" "$base" || die "the Debian root could not be made; see the messages above"
    rm -rf "$target" && mv "$target.part" "$target" && ln -sfn "$version" "$cache/debian-12/current"
fi
say "everything is there: $cache"
