//! `make install` and `make uninstall`: what is where, and that it works from there. Takes what
//! cargo built for the tests.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use zerowire_testkit::cc::{shared_library, static_library};

use crate::page_links::installed_links_lead_somewhere;

/// What is installed below PREFIX, beside the pages of the manual and the documents.
const FILES: [&str; 35] = [
    "bin/zerowire",
    "bin/zerowire-bench",
    "etc/zerowire/zerowire.toml",
    "include/zerowire.h",
    "lib/libzerowire.a",
    "lib/libzerowire.so",
    "lib/libzerowire.so.0",
    "lib/pkgconfig/zerowire.pc",
    "lib/systemd/system/zerowire-vsock@.service",
    "lib/systemd/system/zerowire-vsock@.socket",
    "lib/systemd/system/zerowire.service",
    "lib/systemd/system/zerowire@.service",
    "lib/systemd/system/zerowire@.socket",
    "lib/sysusers.d/zerowire.conf",
    "lib/tmpfiles.d/zerowire.conf",
    "libexec/zerowire-net",
    "libexec/zerowire-vsock",
    "share/bash-completion/completions/zerowire",
    "share/bash-completion/completions/zerowire-bench",
    "share/fish/vendor_completions.d/zerowire-bench.fish",
    "share/fish/vendor_completions.d/zerowire.fish",
    "share/qemu/vhost-user/50-zerowire-net.json",
    "share/qemu/vhost-user/50-zerowire-vsock.json",
    "share/zerowire/apparmor/zerowire-service",
    "share/zerowire/grafana/zerowire.json",
    "share/zerowire/prometheus/zerowire.rules.yml",
    "share/zerowire/selinux/zerowire.fc",
    "share/zerowire/selinux/zerowire.te",
    "share/zerowire/systemd/metrics.conf",
    "share/zerowire/systemd/packet.conf",
    "share/zerowire/systemd/sandbox.conf",
    "share/zerowire/systemd/xdp.conf",
    "share/zerowire/zerowire-api.yaml",
    "share/zsh/site-functions/_zerowire",
    "share/zsh/site-functions/_zerowire-bench",
];

/// The pages and their figures, in the folders of the tree, and the one of `dist` that they link
/// to.
fn documents() -> impl Iterator<Item = String> {
    let folders = [
        ("docs", "md"),
        ("measurements", "md"),
        ("measurements/data", "md"),
        ("measurements/figures", "svg"),
    ];
    let below = folders.into_iter().flat_map(|(folder, kind)| {
        let files =
            root().join(folder).read_dir().expect(folder).map(|entry| entry.expect("an entry").path());
        let files = files.filter(move |file| file.extension().is_some_and(|e| e == kind));
        files
            .map(move |file| format!("{folder}/{}", file.file_name().and_then(|n| n.to_str()).expect("text")))
    });
    let first = ["README.md", "SECURITY.md", "CHANGELOG.md", "dist"].map(str::to_owned);
    first.into_iter().chain(below).map(|name| format!("share/doc/zerowire/{name}"))
}

/// All of it below PREFIX: each page of man/ lies in the folder of its section.
pub fn installed() -> BTreeSet<String> {
    let pages = root().join("man").read_dir().expect("man").map(|entry| entry.expect("an entry").file_name());
    let pages: Vec<_> = pages.map(|name| name.into_string().expect("text")).collect();
    for page in ["zerowire.1", "zerowire-net.1", "zerowire-bench.1", "zerowire.3", "zerowire.toml.5"] {
        assert!(pages.iter().any(|name| name == page), "man lacks {page}");
    }
    let place = |page: String| {
        let section = page.rsplit('.').next().expect("a section");
        format!("share/man/man{section}/{page}")
    };
    FILES.map(str::to_owned).into_iter().chain(pages.into_iter().map(place)).chain(documents()).collect()
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project's folder")
}

/// A folder with the names that `make build` makes.
pub fn built(folder: &Path) -> PathBuf {
    let build = folder.join("built");
    std::fs::create_dir(&build).expect("a folder");
    // Who builds this package's tests alone has no zerowire-bench: installing it needs no more than
    // its name.
    for name in ["zerowire", "zerowire-bench"] {
        symlink(env!("CARGO_BIN_EXE_zerowire"), build.join(name)).expect("a link");
    }
    let name = "libzerowire_c.a";
    symlink(static_library(), build.join(name)).expect("a link");
    let library = shared_library(Path::new(env!("CARGO_TARGET_TMPDIR")));
    symlink(library, build.join("libzerowire.so.0")).expect("a link");
    build
}

pub fn run(command: &mut Command) -> Output {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}: {said}", out.status);
    out
}

pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

/// Runs make as a person does, without what another make or cargo left in the environment.
pub fn make(target: &str, variables: &[(&str, &Path)]) -> Command {
    let mut make = Command::new("make");
    make.arg("-C").arg(root()).arg(target);
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PREFIX", "DESTDIR"] {
        make.env_remove(name);
    }
    for (name, value) in variables {
        make.arg(format!("{name}={}", value.display()));
    }
    make
}

/// Files and links below a folder, by their names from there.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in next.read_dir().unwrap_or_else(|e| panic!("{}: {e}", next.display())) {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("its type").is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path();
                let name = path.strip_prefix(folder).expect("below").to_str().expect("text");
                found.insert(name.to_owned());
            }
        }
    }
    found
}

/// QEMU's descriptions of the devices: each names a program that exists below `destdir` and serves
/// that device.
fn descriptions(destdir: &Path, prefix: &Path) {
    for device in ["net", "vsock"] {
        let file = prefix.join(format!("share/qemu/vhost-user/50-zerowire-{device}.json"));
        let said = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let json: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{said}: {e}"));
        assert_eq!(json["type"], device);
        assert!(json["description"].as_str().is_some_and(|d| d.contains(device)), "{said}");
        let binary = json["binary"].as_str().expect("a path");
        assert!(binary.starts_with('/'), "{binary}");
        let program = destdir.join(binary.trim_start_matches('/'));
        let out = run(Command::new(&program).arg("--print-capabilities"));
        let said = text(out.stdout);
        let json: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{said}: {e}"));
        assert_eq!(json["type"], device, "{said}");
    }
}

/// What pkg-config says of the library that was installed below `destdir`.
fn pkg_config(destdir: &Path, prefix: &Path, wanted: &[&str]) -> Vec<String> {
    let out = Command::new("pkg-config")
        .args(wanted)
        .arg("zerowire")
        .env("PKG_CONFIG_LIBDIR", prefix.join("lib/pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", destdir)
        .env_remove("PKG_CONFIG_PATH")
        .output()
        .expect("pkg-config: install it (Debian: pkg-config)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    text(out.stdout).split_whitespace().map(str::to_owned).collect()
}

/// Compiles the example with what pkg-config says.
fn compile(flags: &[String], more: &[&str], program: &Path) {
    let example = root().join("crates/zerowire-c/examples/c/recv_sockets.c");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra"]).args(more).arg(example).arg("-o").arg(program);
    run(cc.args(flags));
}

/// Runs the example and sends it something.
fn receives(mut program: Command) {
    let mut child = program
        .args(["-m", "plain", "0", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program:?}: {e}"));
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    let port: u16 = line.trim().strip_prefix("port ").and_then(|p| p.parse().ok()).expect("a port");
    let sent = [7; 100_000];
    TcpStream::connect(("127.0.0.1", port)).expect("connected").write_all(&sent).expect("sent");
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("text");
    assert!(child.wait().expect("ended").success(), "{rest}");
    assert!(rest.contains("100000 bytes, sum 700000\n"), "{rest}");
}

/// What is dynamically linked, and under which names.
fn needed(file: &Path) -> String {
    text(run(Command::new("readelf").arg("-d").arg(file)).stdout)
}

#[test]
fn what_is_installed_works_from_there_and_can_be_taken_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = built(folder.path());
    let destdir = folder.path().join("root");
    let prefix = destdir.join("usr/local");
    // What others have there stays.
    std::fs::create_dir_all(prefix.join("lib")).expect("a folder");
    std::fs::write(prefix.join("lib/libother.so"), "other").expect("written");
    let where_to = [("DESTDIR", destdir.as_path()), ("BUILD", build.as_path())];
    run(&mut make("install", &where_to));
    // A second time over the first, as an update is.
    run(&mut make("install", &where_to));

    let mut wanted: BTreeSet<_> = installed().iter().map(|f| format!("usr/local/{f}")).collect();
    wanted.insert("usr/local/lib/libother.so".to_owned());
    assert_eq!(files(&destdir), wanted);
    for (file, mode) in [
        ("bin/zerowire", 0o755),
        ("bin/zerowire-bench", 0o755),
        ("lib/libzerowire.so.0", 0o755),
        ("lib/libzerowire.a", 0o644),
    ]
    .into_iter()
    .chain(FILES.iter().filter(|f| f.starts_with("share/")).map(|f| (*f, 0o644)))
    .chain([("share/man/man1/zerowire-net.1", 0o644)])
    .chain([("include/zerowire.h", 0o644), ("lib/pkgconfig/zerowire.pc", 0o644)])
    {
        let at = prefix.join(file).symlink_metadata().expect("is there");
        assert!(at.is_file(), "{file} is a copy, not a link to what was built");
        assert_eq!(at.permissions().mode() & 0o777, mode, "{file}");
    }
    for (file, section) in [
        ("bin/zerowire", ".symtab"),
        ("lib/libzerowire.so.0", ".symtab"),
        ("lib/libzerowire.a", ".debug_line"),
    ] {
        let sections = text(run(Command::new("readelf").arg("-SW").arg(prefix.join(file))).stdout);
        assert!(sections.contains(" .text"), "{sections}");
        assert!(!sections.contains(&format!(" {section} ")), "{file} is stripped");
    }
    let version = text(run(Command::new(prefix.join("bin/zerowire")).arg("--version")).stdout);
    assert_eq!(version.trim(), format!("zerowire {}", env!("CARGO_PKG_VERSION")));
    descriptions(&destdir, &prefix);

    let link = prefix.join("lib/libzerowire.so").read_link().expect("a link");
    assert_eq!(link, Path::new("libzerowire.so.0"));
    assert!(needed(&prefix.join("lib/libzerowire.so.0")).contains("Library soname: [libzerowire.so.0]"));
    assert_eq!(pkg_config(&destdir, &prefix, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);

    let program = folder.path().join("program");
    compile(&pkg_config(&destdir, &prefix, &["--cflags", "--libs"]), &[], &program);
    assert!(needed(&program).contains("Shared library: [libzerowire.so.0]"));
    let mut shared = Command::new(&program);
    shared.env("LD_LIBRARY_PATH", prefix.join("lib"));
    receives(shared);

    compile(&pkg_config(&destdir, &prefix, &["--static", "--cflags", "--libs"]), &["-static"], &program);
    assert!(needed(&program).contains("There is no dynamic section"), "{}", needed(&program));
    receives(Command::new(&program));
    // Where only the static library is, the other libraries are still shared ones.
    std::fs::remove_file(prefix.join("lib/libzerowire.so")).expect("removed");
    compile(&pkg_config(&destdir, &prefix, &["--static", "--cflags", "--libs"]), &[], &program);
    assert!(!needed(&program).contains("libzerowire"), "{}", needed(&program));
    receives(Command::new(&program));

    // A file that is missing already doesn't stop it.
    run(&mut make("uninstall", &[("DESTDIR", &destdir)]));
    assert_eq!(files(&destdir), BTreeSet::from(["usr/local/lib/libother.so".to_owned()]));
}

#[test]
fn a_prefix_is_where_everything_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = built(folder.path());
    let prefix = folder.path().join("opt/zerowire");
    run(make("install", &[("PREFIX", &prefix), ("BUILD", &build)]).arg("STRIP="));
    assert_eq!(files(&prefix), installed());
    installed_links_lead_somewhere(&prefix.join("share/doc/zerowire"));
    descriptions(Path::new("/"), &prefix);
    let program = folder.path().join("program");
    compile(&pkg_config(Path::new(""), &prefix, &["--cflags", "--libs"]), &[], &program);
    let mut shared = Command::new(&program);
    shared.env("LD_LIBRARY_PATH", prefix.join("lib"));
    receives(shared);
    run(&mut make("uninstall", &[("PREFIX", &prefix)]));
    assert_eq!(files(&prefix), BTreeSet::new());
}

#[test]
fn what_was_not_built_is_not_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = built(folder.path());
    std::fs::remove_file(build.join("libzerowire_c.a")).expect("removed");
    let prefix = folder.path().join("prefix");
    let out = make("install", &[("PREFIX", &prefix), ("BUILD", &build)]).output().expect("make");
    assert_eq!(out.status.code(), Some(2));
    let said = text(out.stderr);
    assert!(said.contains("lacks zerowire, zerowire-bench, libzerowire.so.0 or libzerowire_c.a"), "{said}");
    assert!(said.contains("run 'make build' first"), "{said}");
    assert!(!prefix.exists(), "nothing is half installed");
}
