//! Where transfers say what they do, and where their results go.

use std::fs::{File, read, write};
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::process::{Command, Output};

use crate::support::send::{command, file, pattern};

/// A listener, and how it is named to `send`.
fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("its address").to_string();
    (listener, to)
}

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zerowire")).args(args).output().expect("the program starts")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Nothing can be said there.
#[test]
fn a_full_standard_error_stops_no_transfer() {
    let (content, full) =
        (pattern(3_000_000), || File::options().write(true).open("/dev/full").expect("there"));
    let source = file(&content);
    let (listener, to) = listener();
    let mut child = command(&["--to", &to, source.path().to_str().expect("UTF-8")])
        .stderr(full())
        .spawn()
        .expect("the program starts");
    let mut got = Vec::new();
    listener.accept().expect("a connection").0.read_to_end(&mut got).expect("no reset");
    assert!(child.wait().expect("it ends").success());
    assert!(got == content, "{} bytes arrived", got.len());

    // It can't say its port.
    let to = {
        let (_free, to) = self::listener();
        to
    };
    let port = to.rsplit(':').next().expect("a port");
    let target = file(b"");
    let recv = ["recv", "--bind", "127.0.0.1", "-p", port, "--to", target.path().to_str().expect("UTF-8")];
    let mut recv =
        Command::new(env!("CARGO_BIN_EXE_zerowire")).args(recv).stderr(full()).spawn().expect("it starts");
    let mut last = String::new();
    let sent = (0..100).any(|_| {
        let output = program(&["send", "--quiet", "--to", &to, source.path().to_str().expect("UTF-8")]);
        last = told(&output);
        std::thread::sleep(std::time::Duration::from_millis(50));
        output.status.success()
    });
    assert!(sent, "{last}");
    assert!(recv.wait().expect("it ends").success());
    assert!(read(target.path()).expect("the file") == content);
}

/// A result as the transfers write it, with `bytes` bytes more behind it.
fn earlier_result(bytes: usize) -> String {
    let more = "x".repeat(bytes);
    serde_json::json!({ "bytes": 1, "cpu_seconds": 0.1, "ledger": {}, "more": more }).to_string()
}

/// Starts `send --json RESULT` to a reader; `before` is said to the shell first.
fn send_with_result(result: &str, path: &str, before: &str) -> Output {
    let (listener, to) = listener();
    let reader =
        std::thread::spawn(move || listener.accept().map(|(mut s, _)| s.read_to_end(&mut Vec::new())));
    let script = format!("{before} exec \"$@\"");
    let zerowire = env!("CARGO_BIN_EXE_zerowire");
    let output = Command::new("sh")
        .args(["-c", &script, "sh", zerowire, "send", "--to", &to, "--json", result, path])
        .output()
        .expect("the program starts");
    reader.join().expect("no panic").expect("a connection").expect("no reset");
    output
}

/// A result takes the place of an earlier one, and of nothing else.
#[test]
fn a_result_overwrites_no_other_file() {
    let source = file(b"what is sent");
    let path = source.path().to_str().expect("UTF-8");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (image, link, earlier) = (at("disk.img"), at("link"), at("earlier.json"));
    write(&image, b"an image").expect("written");
    let foreign = [
        ("letter.rtf", r"{\rtf1 a letter}".to_owned()),
        ("settings.json", "{\"bytes\": 1}\n".to_owned()),
        ("cut.json", earlier_result(100)[..120].to_owned()),
        ("two.json", earlier_result(1).repeat(2)),
        ("large.json", earlier_result(16 << 20)),
    ];
    for (name, text) in foreign {
        write(at(name), &text).expect("written");
        let output = program(&["send", "--to", "127.0.0.1:1", "--json", &at(name), path]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", told(&output));
        assert!(told(&output).contains("is there and is no earlier result"), "{name}: {}", told(&output));
        assert!(read(at(name)).expect("the file") == text.as_bytes(), "{name}");
    }
    std::fs::hard_link(path, &link).expect("a link");
    for (args, why) in [
        (&["send", "--to", "127.0.0.1:1", "--json", &image, path][..], "is there and is no earlier result"),
        (&["send", "--to", "127.0.0.1:1", "--json", &link, path], "is read or written by this command"),
        (&["replay", "-i", "lo", "--json", path, path], "is read or written by this command"),
        (&["recv", "-p", "0", "--to", path, "--json", path], "is read or written by this command"),
    ] {
        let output = program(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", told(&output));
        assert!(told(&output).contains(why), "{args:?}: {}", told(&output));
    }
    assert_eq!(read(&image).expect("the file"), b"an image");
    assert_eq!(read(path).expect("the file"), b"what is sent");

    write(&earlier, earlier_result(10_000)).expect("written");
    for _ in 0..2 {
        let output = send_with_result(&earlier, path, "");
        assert!(output.status.success(), "{}", told(&output));
        let result: serde_json::Value =
            serde_json::from_slice(&read(&earlier).expect("the file")).expect("JSON alone");
        assert_eq!((&result["bytes"], &result["outcome"]), (&12.into(), &"complete".into()));
    }
}

/// No file may have a byte, as on a full disk.
#[test]
fn a_result_without_room_leaves_the_earlier_one_as_it_is() {
    let source = file(b"what is sent");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("earlier.json");
    write(&path, earlier_result(100)).expect("written");
    let (path, source) = (path.to_str().expect("UTF-8"), source.path().to_str().expect("UTF-8"));
    let output = send_with_result(path, source, "ulimit -f 0;");
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("can't write"), "{}", told(&output));
    assert_eq!(std::fs::read_to_string(path).expect("the file"), earlier_result(100));
    let names: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

/// What people gave the file stays: its owner, its permissions, and its other names.
#[test]
fn a_result_has_the_place_and_the_permissions_of_the_earlier_one() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let source = file(b"what is sent");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (earlier, link) = (at("earlier.json"), at("link.json"));
    write(&earlier, earlier_result(100)).expect("written");
    std::fs::set_permissions(&earlier, PermissionsExt::from_mode(0o640)).expect("set");
    std::os::unix::fs::symlink(&earlier, &link).expect("a link");
    for path in [&earlier, &link] {
        let output = send_with_result(path, source.path().to_str().expect("UTF-8"), "");
        assert!(output.status.success(), "{}", told(&output));
        let metadata = std::fs::metadata(&earlier).expect("the file");
        assert_eq!(metadata.mode() & 0o777, 0o640);
        assert!(std::fs::symlink_metadata(&link).expect("the link").is_symlink());
        let text = std::fs::read_to_string(&earlier).expect("the file");
        assert!(text.contains("\"complete\""), "{text}");
        write(&earlier, earlier_result(1)).expect("written");
    }
}

/// Whoever reads the status alone would send all of it again.
#[test]
fn a_result_that_cant_be_written_is_an_error_before_anything_is_sent() {
    let (listener, to) = listener();
    listener.set_nonblocking(true).expect("set");
    let output = program(&["send", "--to", &to, "--json", "/nowhere/x", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("can't write /nowhere/x"), "{}", told(&output));
    assert_eq!(listener.accept().expect_err("nobody connected").kind(), ErrorKind::WouldBlock);
}

#[test]
fn why_a_transfer_failed_comes_before_why_its_result_is_lost() {
    let (listener, to) = listener();
    let child =
        command(&["--to", &to, "/dev/zero", "--quiet", "--json", "/dev/full"]).spawn().expect("it starts");
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.read_exact(&mut [0; 100_000]).expect("bytes");
    // Unread bytes: a reset.
    drop(stream);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    for why in ["can't write /dev/full: No space left", "the connection is gone"] {
        assert!(told(&output).contains(why), "{why}: {}", told(&output));
    }
}
