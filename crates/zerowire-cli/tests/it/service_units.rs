//! The services' units, the SELinux module, and the packages: Debian's, the tarball, the recipe of
//! an RPM.
//! What this machine has no program for says so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::install::{built, make, root, run, text};
use crate::page_links::installed_links_lead_somewhere;

/// Whether a program is there; if not, the test says that it did not run.
fn has(program: &str, package: &str) -> bool {
    let mut asked = Command::new(program);
    let is_there =
        asked.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = is_there.is_ok();
    if !is_there {
        eprintln!("not run: {program} is missing (Debian: {package})");
    }
    is_there
}

/// Installs below a folder, and returns the units' folder. Nothing is stripped, which would take
/// long.
fn installed(folder: &Path) -> PathBuf {
    let build = built(folder);
    let prefix = folder.join("prefix");
    run(make("install", &[("PREFIX", &prefix), ("BUILD", &build)]).arg("STRIP="));
    prefix.join("lib/systemd/system")
}

/// What packages are made of. Their static library is an archive without members: no test of a
/// package looks into it, and to strip some hundred members takes long.
fn packed(folder: &Path) -> PathBuf {
    let build = built(folder);
    let library = build.join("libzerowire_c.a");
    std::fs::remove_file(&library).expect("a link");
    std::fs::write(&library, "!<arch>\n").expect("written");
    build
}

const SERVICES: [&str; 3] = ["zerowire.service", "zerowire@.service", "zerowire-vsock@.service"];

#[test]
fn systemd_takes_the_units_and_finds_them_confined() {
    if !has("systemd-analyze", "systemd") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let units = installed(folder.path());
    for unit in SERVICES.into_iter().chain(["zerowire@.socket", "zerowire-vsock@.socket"]) {
        let path = units.join(unit);
        let out = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
        let said = text(out.stderr);
        // Units of the machine that they name may have faults of their own.
        assert!(!said.lines().any(|line| line.contains("zerowire")), "{said}");
    }
    for unit in SERVICES {
        // Tenths: 2.0.
        let limit = ["security", "--offline=true", "--no-pager", "--threshold=20"];
        run(Command::new("systemd-analyze").args(limit).arg(units.join(unit)));
    }
}

/// `--sandbox on`, and leave to make what the sandbox is made of: with it the processes that serve
/// VMs have namespaces and an empty root.
#[test]
fn the_units_serve_no_vm_unconfined() {
    let folder = tempfile::tempdir().expect("a folder");
    let units = installed(folder.path());
    for unit in SERVICES {
        let lines = std::fs::read_to_string(units.join(unit)).expect("a unit");
        let values = |key: &str| -> Vec<_> {
            let lines = lines.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            lines.flat_map(str::split_whitespace).collect()
        };
        assert!(lines.contains(" --sandbox ${SANDBOX} "), "{unit}");
        assert!(values("Environment").contains(&"SANDBOX=on"), "{unit}");
        let namespaces = values("RestrictNamespaces");
        for namespace in ["pid", "ipc", "net", "mnt"] {
            assert!(namespaces.contains(&namespace), "{unit}: {namespaces:?}");
        }
        let has_right = values("AmbientCapabilities").contains(&"CAP_SYS_ADMIN");
        assert!(namespaces.contains(&"user") || has_right, "{unit}: {namespaces:?}");
        let calls = values("SystemCallFilter");
        for call in ["mount", "umount2", "pivot_root"] {
            assert!(calls.contains(&call), "{unit}: {call}");
        }
    }
}

#[test]
fn checkmodule_takes_the_selinux_module() {
    if !has("checkmodule", "checkpolicy") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // checkmodule asks for the module's name.
    let module = folder.path().join("zerowire.mod");
    let profile = root().join("dist/selinux");
    run(Command::new("checkmodule").args(["-M", "-m", "-o"]).arg(&module).arg(profile.join("zerowire.te")));
    if !has("semodule_package", "semodule-utils") {
        return;
    }
    let package = folder.path().join("zerowire.pp");
    let mut packed = Command::new("semodule_package");
    run(packed.arg("-o").arg(package).arg("-m").arg(module).arg("-f").arg(profile.join("zerowire.fc")));
}

/// The words of a line, with each choice of a pair of braces.
fn expanded(line: &str) -> Vec<String> {
    let parts = line.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (choices, after))) => {
            choices.split(',').flat_map(|choice| expanded(&format!("{before}{choice}{after}"))).collect()
        }
        None => line.split_whitespace().map(str::to_owned).collect(),
    }
}

/// Those of packages, and those of the tarball and of `make install`.
#[test]
fn the_profiles_have_both_places_of_the_program_and_its_settings() {
    let words = |file: &str| -> BTreeSet<String> {
        let text = std::fs::read_to_string(root().join("dist").join(file)).expect(file);
        text.lines().flat_map(expanded).collect()
    };
    let (apparmor, selinux) = (words("apparmor/zerowire-service"), words("selinux/zerowire.fc"));
    for (program, settings) in
        [("/usr/bin/zerowire", "/etc/zerowire"), ("/usr/local/bin/zerowire", "/usr/local/etc/zerowire")]
    {
        assert!(apparmor.contains(program) && apparmor.contains(&format!("{settings}/**")), "{apparmor:?}");
        assert!(selinux.contains(program) && selinux.contains(&format!("{settings}(/.*)?")), "{selinux:?}");
    }
}

#[test]
fn rpm_takes_the_spec_file() {
    if !has("rpmspec", "rpm") {
        return;
    }
    let spec = root().join("dist/rpm/zerowire.spec");
    let out = run(Command::new("rpmspec").arg("-P").arg(&spec));
    let said = text(out.stdout) + &text(out.stderr);
    assert!(!said.contains("warning: ") && !said.contains("error: "), "{said}");
    let version = env!("CARGO_PKG_VERSION");
    let named =
        text(run(Command::new("rpmspec").args(["-q", "--qf", "%{name} %{version}\n"]).arg(&spec)).stdout);
    let wanted = ["zerowire", "zerowire-bench", "zerowire-libs", "zerowire-devel"];
    assert_eq!(named, wanted.map(|name| format!("{name} {version}\n")).concat());
}

#[test]
fn the_tarball_has_the_programs_with_their_files() {
    if !has("xz", "xz-utils") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut script = Command::new(root().join("scripts/tarball.sh"));
    script.arg(folder.path()).env("BUILD", packed(folder.path())).env("XZ_OPT", "-0");
    let tarball = text(run(&mut script).stdout);
    let name = format!("zerowire-{}-x86_64", env!("CARGO_PKG_VERSION"));
    assert_eq!(tarball.trim(), folder.path().join(format!("{name}.tar.xz")).to_str().expect("text"));
    let listed = text(run(Command::new("tar").arg("-tJf").arg(tarball.trim())).stdout);
    let files = listed.lines().filter(|line| !line.ends_with('/'));
    let of_library = ["include/", "lib/libzerowire", "lib/pkgconfig/", "share/man/man3/"];
    let licences = ["LICENSE-APACHE", "LICENSE-MIT"].map(|name| format!("share/doc/zerowire/{name}"));
    let wanted: BTreeSet<_> = crate::install::installed()
        .into_iter()
        .filter(|file| !of_library.iter().any(|start| file.starts_with(start)))
        .chain(licences)
        .map(|file| format!("{name}/{file}"))
        .collect();
    assert_eq!(files.map(str::to_owned).collect::<BTreeSet<_>>(), wanted);
}

/// An option that the program does not have would be found by nobody before the service starts.
#[test]
fn the_units_start_the_program_with_options_that_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let units = installed(folder.path());
    for unit in SERVICES {
        let lines = std::fs::read_to_string(units.join(unit)).expect("a unit").replace("\\\n", "");
        let start = lines.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
        let mut words = start.split_whitespace();
        let program = words.next().expect("a program");
        let command = words.next().expect("a command");
        let help = text(run(Command::new(program).args([command, "--help"])).stdout);
        let options: Vec<_> = words.filter(|word| word.starts_with("--")).collect();
        assert!(options.len() >= 2, "{start}");
        for option in options {
            assert!(help.contains(&format!("{option} ")), "{unit}: {option}");
        }
        assert!(!lines.contains('@') || !lines.contains("@bindir@"), "{lines}");
    }
}

/// Makes the packages in a folder. The packages are not compressed, which would take long.
fn packages(folder: &Path, build: &Path) -> Vec<PathBuf> {
    let mut script = Command::new(root().join("scripts/deb.sh"));
    script.arg(folder).env("BUILD", build).env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    let said = text(run(&mut script).stdout);
    let paths: Vec<_> = said.lines().map(PathBuf::from).collect();
    let names: Vec<_> =
        paths.iter().map(|p| p.file_name().and_then(|n| n.to_str()).expect("a name")).collect();
    let wanted = ["zerowire", "zerowire-bench", "libzerowire0", "libzerowire-dev"];
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(names, wanted.map(|name| format!("{name}_{version}_amd64.deb")));
    paths
}

/// Files and links of a package, without manual pages and what lies in its folder of documents.
fn content(package: &Path) -> BTreeSet<String> {
    let listed = text(run(Command::new("dpkg-deb").arg("--contents").arg(package)).stdout);
    let files = listed.lines().filter(|line| !line.starts_with('d'));
    let names = files.filter_map(|line| line.split_whitespace().nth(5)?.strip_prefix("./"));
    let is_page = |name: &str| name.starts_with("usr/share/man/") || name.starts_with("usr/share/doc/");
    names.filter(|name| !is_page(name)).map(str::to_owned).collect()
}

#[test]
fn each_package_has_its_files() {
    if !has("dpkg-deb", "dpkg") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let build = packed(folder.path());
    let made = packages(&folder.path().join("deb"), &build);
    let lib = "usr/lib/x86_64-linux-gnu";
    let library = |names: &[&str]| names.iter().map(|name| format!("{lib}/{name}")).collect::<Vec<_>>();
    let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let bench = own(&[
        "usr/bin/zerowire-bench",
        "usr/share/bash-completion/completions/zerowire-bench",
        "usr/share/fish/vendor_completions.d/zerowire-bench.fish",
        "usr/share/zsh/site-functions/_zerowire-bench",
    ]);
    let development = [
        own(&["usr/include/zerowire.h"]),
        library(&["libzerowire.a", "libzerowire.so", "pkgconfig/zerowire.pc"]),
    ]
    .concat();
    for (package, wanted) in made[1..].iter().zip([bench, library(&["libzerowire.so.0"]), development]) {
        assert_eq!(content(package), wanted.into_iter().collect(), "{}", package.display());
    }
    let program = content(&made[0]);
    for name in [
        "usr/bin/zerowire",
        "usr/libexec/zerowire-net",
        "usr/lib/systemd/system/zerowire@.service",
        "usr/lib/systemd/system/zerowire@.socket",
        "usr/lib/sysusers.d/zerowire.conf",
        "usr/share/zerowire/grafana/zerowire.json",
        "usr/share/zerowire/prometheus/zerowire.rules.yml",
        "usr/share/zerowire/zerowire-api.yaml",
        "usr/share/qemu/vhost-user/50-zerowire-net.json",
        "etc/zerowire/zerowire.toml",
    ] {
        assert!(program.contains(name), "no {name} in {program:?}");
    }
    assert!(program.iter().all(|name| !name.contains("bench") && !name.contains("lib/x86")), "{program:?}");
    let all = text(run(Command::new("dpkg-deb").arg("--contents").arg(&made[0])).stdout);
    for page in ["man1/zerowire-net.1.gz", "man5/zerowire.toml.5.gz", "doc/zerowire/copyright"] {
        assert!(all.contains(page), "no {page} in {all}");
    }
    let unpacked = folder.path().join("unpacked");
    run(Command::new("dpkg-deb").arg("--extract").arg(&made[0]).arg(&unpacked));
    installed_links_lead_somewhere(&unpacked.join("usr/share/doc/zerowire"));
    // Everything belongs to root, and the same files give the same packages.
    assert!(all.lines().all(|line| line.contains(" root/root ")), "{all}");
    let again = packages(&folder.path().join("again"), &build);
    for (one, other) in made.iter().zip(&again) {
        let read = |path: &Path| std::fs::read(path).expect("a package");
        assert!(read(one) == read(other), "{} differs from the same made again", one.display());
    }
}

/// Installs and purges the packages ($1 …) on a copy of this machine that is made for that, and
/// says what is left in the end. No service runs there, and nothing of it reaches the machine.
const INSTALL: &str = r#"
set -e
work=$1; shift
mount -t tmpfs tmpfs "$work"
mkdir "$work/up" "$work/work" "$work/root" "$work/debs"
cp "$@" "$work/debs"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/up,workdir=$work/work" "$work/root"
mount -t proc proc "$work/root/proc"
mount --bind /dev "$work/root/dev"
mount -t tmpfs tmpfs "$work/root/run"
mkdir "$work/root/run/debs"
# man-db would make its index of all pages anew, twice.
rm -f "$work/root/var/lib/man-db/auto-update"
mount --bind "$work/debs" "$work/root/run/debs"
inside() { chroot "$work/root" env DEBIAN_FRONTEND=noninteractive "$@"; }
inside sh -c 'dpkg --install /run/debs/*.deb' >&2
echo "version: $(inside zerowire --version)"
echo "user: $(inside id -un zerowire) of $(inside id -Gn zerowire)"
echo "verify: $(inside dpkg --verify zerowire zerowire-bench libzerowire0 libzerowire-dev)"
inside ldconfig -p | sed -n 's/^\t\(libzerowire\.so\.0\).*/library: \1/p'
touch "$work/root/etc/zerowire/vm0.env"
mkdir -p "$work/root/etc/systemd/system/sockets.target.wants"
ln -s /usr/lib/systemd/system/zerowire@.socket "$work/root/etc/systemd/system/sockets.target.wants/zerowire@vm0.socket"
inside dpkg --purge zerowire zerowire-bench libzerowire-dev libzerowire0 >&2
# What dpkg, ldconfig and man-db keep for themselves is no package's, and neither are backups of
# lists of users.
cd "$work/up"
find . \( -type f -o -type l \) ! -path './var/lib/dpkg/*' ! -path './var/log/*' ! -path './var/cache/*' \
    ! -path './etc/ld.so.cache' ! -path './etc/*-' ! -path './etc/.pwd.lock' | sort | while read -r file; do
    cmp -s "$file" "/$file" || echo "left: $file"
done
inside getent passwd zerowire || inside getent group zerowire zerowire-vm || echo "no user"
"#;

#[test]
fn a_purge_leaves_nothing() {
    if !has("dpkg", "dpkg") || !has("systemd-sysusers", "systemd") {
        return;
    }
    if std::fs::read_to_string("/proc/filesystems").is_ok_and(|all| !all.contains("overlay")) {
        eprintln!("not run: this kernel has no overlay file system to install packages on a copy");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let made = packages(&folder.path().join("deb"), &packed(folder.path()));
    let work = folder.path().join("machine");
    std::fs::create_dir(&work).expect("a folder");
    let mut script = Command::new("unshare");
    script.args(["--mount", "--propagation", "private", "sh", "-c", INSTALL, "sh"]);
    let said = text(run(script.arg(work).args(made)).stdout);
    let version = env!("CARGO_PKG_VERSION");
    for line in [
        &format!("version: zerowire {version}"),
        "user: zerowire of zerowire zerowire-vm",
        "verify: ",
        "library: libzerowire.so.0",
        "no user",
    ] {
        assert!(said.lines().any(|l| l == line), "no '{line}' in {said}");
    }
    // Lists of users are written anew, and have what they had before.
    let left: Vec<_> = said.lines().filter(|line| line.starts_with("left: ")).collect();
    assert!(left.is_empty(), "{left:?}");
}
