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

/// A result takes the place of an earlier one, and of nothing else.
#[test]
fn a_result_overwrites_no_other_file() {
    let source = file(b"what is sent");
    let path = source.path().to_str().expect("UTF-8");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (image, link, earlier) = (at("disk.img"), at("link"), at("earlier.json"));
    write(&image, b"an image").expect("written");
    std::fs::hard_link(path, &link).expect("a link");
    for (args, why) in [
        (&["send", "--to", "127.0.0.1:1", "--json", &image, path][..], "is there and has no JSON"),
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

    write(&earlier, "{}".repeat(10_000)).expect("written");
    let (listener, to) = listener();
    let reader =
        std::thread::spawn(move || listener.accept().map(|(mut s, _)| s.read_to_end(&mut Vec::new())));
    assert!(program(&["send", "--to", &to, "--json", &earlier, path]).status.success());
    reader.join().expect("no panic").expect("a connection").expect("no reset");
    let result: serde_json::Value =
        serde_json::from_slice(&read(&earlier).expect("the file")).expect("JSON alone");
    assert_eq!((&result["bytes"], &result["outcome"]), (&12.into(), &"complete".into()));
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
