//! The C example, compiled by the system's compiler against both libraries, and the header against the Rust layout.

#[path = "../../zerowire/tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::Daemon;
use rustix::net::RecvFlags;
use zerowire::recv::layout;

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put the libraries: beside the test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let deps = test.parent().expect("a folder");
    for folder in [deps, deps.parent().expect("a folder")] {
        if folder.join("libzerowire_c.a").exists() && folder.join("libzerowire_c.so").exists() {
            return folder.to_owned();
        }
    }
    panic!("no libzerowire_c.a and libzerowire_c.so in {} or above", deps.display());
}

/// Compiles the example as a user does, against libraries under the names that they are installed with.
fn compile(folder: &Path, shared: bool) -> PathBuf {
    let from = libraries();
    let program = folder.join("recv_vsock");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg("-I")
        .arg(here().join("include"))
        .arg(here().join("examples/c/recv_vsock.c"))
        .arg("-o")
        .arg(&program);
    if shared {
        std::fs::copy(from.join("libzerowire_c.so"), folder.join("libzerowire.so.0")).expect("copied");
        std::os::unix::fs::symlink("libzerowire.so.0", folder.join("libzerowire.so")).expect("linked");
        cc.arg("-L").arg(folder).arg("-lzerowire").arg(format!("-Wl,-rpath,{}", folder.display()));
    } else {
        std::fs::copy(from.join("libzerowire_c.a"), folder.join("libzerowire.a")).expect("copied");
        cc.arg(folder.join("libzerowire.a")).args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
    }
    let out = cc.output().expect("cc: install a C compiler (Debian: gcc and libc6-dev)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

/// A guest sends three messages, the last one over several windows; the program says what came.
fn receives(shared: bool, options: &[&str], listens: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), shared);
    let daemon = Daemon::new();
    let child = Command::new(program)
        .args(options)
        .arg(daemon.path())
        .arg("5000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let peer = daemon.accept();
    if listens {
        peer.listening();
    }
    assert_eq!((peer.request.port, peer.request.kind), (5000, 2));
    let mut writer = peer.connect();
    let big = vec![3u8; 3 * 128 * 4096];
    writer.send(&[1; 56], layout::ENTRY_EOM);
    writer.send(&[2; 8200], layout::ENTRY_EOM);
    writer.send(&big, layout::ENTRY_EOM);
    writer.end();
    let mut bytes = [0; 16];
    let (n, _) = rustix::net::recv(&writer.socket, &mut bytes, RecvFlags::empty()).expect("sound");
    assert_eq!(&bytes[..n], b"done\n");
    let out = child.wait_with_output().expect("ended");
    let total = 56 + 8200 + big.len();
    let sum = 56 + 2 * 8200 + 3 * big.len();
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        format!("{total} bytes, 5 packets, 3 messages, sum {sum}\n"),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(out.status.success());
}

#[test]
fn the_example_receives_with_the_static_library() {
    receives(false, &["-q"], false);
}

#[test]
fn the_example_receives_with_the_shared_library() {
    receives(true, &["-q", "-z", "-l"], true);
}

#[test]
fn the_example_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), false);
    let run = |path: &Path| {
        let out = Command::new(&program).arg(path).arg("5000").output().expect("started");
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let text = run(&folder.path().join("absent.map"));
    assert!(text.contains("--uds") && text.contains("(error 2)"), "{text}");
    let daemon = Daemon::new();
    let path = daemon.path();
    let refusing = std::thread::spawn(move || {
        daemon.accept().refuse(libc::EPERM, "user 1000 may not: --map-allow 1000")
    });
    let text = run(&path);
    assert!(text.contains("user 1000 may not: --map-allow 1000") && text.contains("--map-allow"), "{text}");
    refusing.join().expect("ended");
}

/// The header alone, as strict C11, with its size checks; and its constants are those of the Rust layout.
#[test]
fn the_header_agrees_with_the_layout() {
    let mut cc = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
        .arg(here().join("include"))
        .args(["-x", "c", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("cc: install a C compiler (Debian: gcc and libc6-dev)");
    let mut program = String::from("#include <zerowire.h>\n");
    for (name, value) in [
        ("ZW_VERSION", u64::from(layout::VERSION)),
        ("ZW_PAGE", layout::PAGE as u64),
        ("ZW_POLL_NOTHING", layout::POLL_NOTHING.into()),
        ("ZW_POLL_DATA", layout::POLL_DATA.into()),
        ("ZW_POLL_END", layout::POLL_END.into()),
        ("ZW_ENTRY_EOM", layout::ENTRY_EOM.into()),
        ("ZW_ENTRY_EOR", layout::ENTRY_EOR.into()),
        ("ZW_ENTRY_DIRECT", layout::ENTRY_DIRECT.into()),
        ("ZW_REGION_SHIFT", layout::REGION_SHIFT.into()),
        ("sizeof(struct zw_window_header)", layout::ENTRIES_AT as u64),
        ("sizeof(struct zw_entry)", layout::ENTRY_LEN as u64),
        ("offsetof(struct zw_control, program_sleeps)", layout::PROGRAM_SLEEPS_AT as u64),
        ("offsetof(struct zw_control, daemon_waits)", layout::DAEMON_WAITS_AT as u64),
        ("offsetof(struct zw_control, version)", layout::VERSION_AT as u64),
        ("sizeof(struct zw_vsock_options)", size_of::<zerowire_c::VsockOptions>() as u64),
        ("sizeof(struct zw_packet)", size_of::<zerowire_c::VsockPacket>() as u64),
    ] {
        program += &format!("_Static_assert({name} == {value}u, \"{name}\");\n");
    }
    cc.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("written");
    assert!(cc.wait().expect("ended").success());
}
