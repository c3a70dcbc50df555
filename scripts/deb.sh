#!/bin/sh
# Makes Debian packages of what `make build` has built: zerowire, zerowire-bench, libzerowire0 and
# libzerowire-dev.
#
#   scripts/deb.sh [FOLDER]             all of them, in FOLDER (default target/deb)
#   scripts/deb.sh FOLDER zerowire      the program's alone
#
# It takes dpkg-deb and binutils alone, and no root. BUILD names another folder than target/release.
# The same tree and compiler give the same packages, byte by byte.
set -eu

cd "$(dirname "$0")/.."
out=${1:-target/deb}
build=${BUILD:-target/release}
die() { echo "deb: $*" >&2; exit 1; }

for program in dpkg-deb dpkg objdump readelf strip gzip; do
    command -v "$program" >/dev/null || die "$program is missing: apt install dpkg binutils gzip"
done
case ${2:-all} in
    all) files="zerowire zerowire-bench libzerowire.so.0 libzerowire_c.a" ;;
    zerowire) files=zerowire ;;
    *) die "unknown package '$2'; use: $0 [FOLDER [zerowire]]" ;;
esac
for file in $files; do
    [ -f "$build/$file" ] || die "$build lacks $file: run 'make build' first"
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
arch=$(dpkg --print-architecture)
libdir=/usr/lib/$(readelf -h "$build/zerowire" | sed -n 's/.*Machine: .*X86-64.*/x86_64-linux-gnu/p')
[ "$libdir" != /usr/lib/ ] || die "$build/zerowire is not for x86-64"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
# Those of another make are not for this one.
unset MAKEFLAGS MFLAGS MAKELEVEL

# part TARGET PACKAGE: installs a part into the package's root.
part() {
    ${MAKE:-make} -s "$1" DESTDIR="$work/$2" PREFIX=/usr BUILD="$build" sysconfdir=/etc libdir="$libdir" >/dev/null
}

# depends FILE: the packages of the libraries that it needs, and the least version of the C library;
# nothing of a static program.
depends() {
    needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
    [ -n "$needed" ] || return 0
    glibc=$(objdump -T "$1" | sed -n 's/.*GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -uV | tail -n 1)
    # It has no number of its own: relative relocations are packed.
    if objdump -p "$1" | grep -q GLIBC_ABI_DT_RELR; then
        glibc=$(printf '%s\n2.36\n' "$glibc" | sort -uV | tail -n 1)
    fi
    list="libc6 (>= $glibc)"
    for library in $needed; do
        case $library in
            libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libutil.so.* | ld-linux*) ;;
            libgcc_s.so.1) list="$list, libgcc-s1" ;;
            *) die "$1 needs $library, whose package this script does not know" ;;
        esac
    done
    echo "$list"
}

# package NAME FILE: FILE is what the package's libraries are asked of.
package() {
    name=$1 root=$work/$1
    doc=$root/usr/share/doc/$name
    mkdir -p "$doc" "$root/DEBIAN"
    sed 's/^$/./;s/^/ /' LICENSE-MIT >"$work/mit"
    sed -e "/^@mit@$/{r $work/mit" -e 'd}' dist/deb/copyright >"$doc/copyright"
    gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
    find "$root/usr/share/man" -type f -exec gzip -9n {} + 2>/dev/null || true
    depends=
    [ -z "$2" ] || depends=$(depends "$2")
    awk -v RS= -v name="$name" '$2 == name' dist/deb/control.in |
        sed "s/@depends@/$depends/;s/@version@/$version/;s/^Depends: , /Depends: /;/^Depends: *\$/d" |
        sed "1a\\
Version: $version\\
Architecture: $arch\\
Maintainer: the zerowire contributors <zerowire@localhost>\\
Priority: optional\\
Installed-Size: $(du -sk --apparent-size "$root" | cut -f1)" >"$root/DEBIAN/control"
    for script in postinst prerm postrm; do
        [ ! -f "dist/deb/$name.$script" ] || install -m 755 "dist/deb/$name.$script" "$root/DEBIAN/$script"
    done
    [ ! -d "$root/etc" ] || (cd "$root" && find etc -type f | sed 's|^|/|' | sort) >"$root/DEBIAN/conffiles"
    if [ "$name" = libzerowire0 ]; then
        chmod 644 "$root$libdir/libzerowire.so.0"
        echo "libzerowire 0 libzerowire0 (>= $version)" >"$root/DEBIAN/shlibs"
        echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
    fi
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | sort | xargs -d '\n' md5sum) \
        >"$root/DEBIAN/md5sums"
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    mkdir -p "$out"
    dpkg-deb --root-owner-group --build "$root" "$out/${name}_${version}_$arch.deb" >/dev/null
    echo "$out/${name}_${version}_$arch.deb"
}
part install-program zerowire
package zerowire "$work/zerowire/usr/bin/zerowire"
[ "${2:-all}" = all ] || exit 0
part install-bench zerowire-bench
part install-library libzerowire-dev
mkdir -p "$work/libzerowire0$libdir"
mv "$work/libzerowire-dev$libdir/libzerowire.so.0" "$work/libzerowire0$libdir"
package zerowire-bench "$work/zerowire-bench/usr/bin/zerowire-bench"
package libzerowire0 "$work/libzerowire0$libdir/libzerowire.so.0"
package libzerowire-dev ""
