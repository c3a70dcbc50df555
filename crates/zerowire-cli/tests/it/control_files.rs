//! Files that clients of the control socket name, and that answer late or never.

use std::fs::File;
use std::io::Read;

use serde_json::json;
use zerowire_testkit::captures;
use zerowire_testkit::fuse::FuseFile;

use crate::support::control::{Controlled, ask};
use crate::support::modes::{Mode, in_both_modes};
use crate::support::{Guest, connect, http, in_netns, wait_until};

in_both_modes! {
    metadata_that_never_answer_hold_up_nobody_else
    a_vm_that_is_added_with_them_holds_up_no_other_device
    a_pipe_without_a_reader_holds_up_no_other_capture
    a_limit_or_a_guard_alone_reads_no_metadata
}

/// Closing the file waits for its file system. Other requests and SIGHUP go on.
fn metadata_that_never_answer_hold_up_nobody_else(mode: Mode) {
    in_netns(move || {
        let dir = tempfile::tempdir().expect("a folder");
        let fuse = FuseFile::mounted(&dir.path().join("fuse"));
        let server = Controlled::start(mode);
        for name in ["zwlate", "zwother"] {
            let file = dir.path().join(name);
            std::fs::write(&file, "{}").expect("metadata");
            let body =
                json!({ "socket": server.path(name), "port": format!("tap:{name}"), "metadata": file });
            assert_eq!(server.ask("PUT", &format!("/vms/{name}"), &body.to_string()).0, 201);
        }
        fuse.hold(true);
        let late = json!({ "metadata": dir.path().join("fuse") }).to_string();
        let control = server.control();
        let asked = std::thread::spawn(move || ask(&control, "PATCH", "/vms/zwlate", &late));
        wait_until("the file is being closed", || fuse.is_being_closed());
        assert_eq!(server.names(), ["zwlate", "zwother"]);
        assert_eq!(server.ask("PATCH", "/vms/zwother", "{\"tx-limit\": \"1M/s\"}").0, 200);
        let (status, text) = asked.join().expect("an answer");
        assert!(status == 422 && text.contains("no answer within 5s"), "{status}: {text}");
        std::fs::write(dir.path().join("zwlate"), "no JSON").expect("other metadata");
        server.program.signal(libc::SIGHUP);
        server.program.wait_log("zwlate: metadata: line 1");
        assert!(fuse.holds(), "all of that while the file is held");
        fuse.hold(false);
    });
}

/// Another VM becomes another device meanwhile.
fn a_vm_that_is_added_with_them_holds_up_no_other_device(mode: Mode) {
    in_netns(move || {
        let dir = tempfile::tempdir().expect("a folder");
        let fuse = FuseFile::mounted(&dir.path().join("fuse"));
        let server = Controlled::start(mode);
        server.add("zwother");
        fuse.hold(true);
        let (socket, metadata) = (server.path("zwlate"), dir.path().join("fuse"));
        let late = json!({ "socket": socket, "port": "tap:zwlate", "metadata": metadata });
        let control = server.control();
        let asked = std::thread::spawn(move || ask(&control, "PUT", "/vms/zwlate", &late.to_string()));
        wait_until("the file is being closed", || fuse.is_being_closed());
        let patch = json!({ "port": "tap:zwelse" }).to_string();
        let (status, text) = server.ask("PATCH", "/vms/zwother?reconnect", &patch);
        assert_eq!(status, 200, "{text}");
        // What was entered is taken.
        let (status, text) = server.ask("PATCH", "/vms/zwother?reconnect", "{\"port\": \"tap:zwlate\"}");
        assert!(status == 409 && text.contains("is VM zwlate's"), "{status}: {text}");
        assert!(!asked.is_finished(), "all of that while the VM is being added");
        assert_eq!(asked.join().expect("an answer").0, 422);
        assert_eq!(server.names(), ["zwother"]);
        fuse.hold(false);
    });
}

/// Who may write to the folder leads captures to no other file.
#[test]
fn a_capture_follows_no_link_out_of_its_folder() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let captures = dir.path().join("captures");
        std::fs::create_dir(&captures).expect("a folder");
        let server = Controlled::start(&["--pcap-dir", &captures.display().to_string()]);
        let (other, absent) = (dir.path().join("other"), dir.path().join("absent"));
        std::fs::write(&other, "what others wrote").expect("written");
        std::os::unix::fs::symlink(&other, captures.join("symbolic")).expect("a link");
        std::os::unix::fs::symlink(&absent, captures.join("dangling")).expect("a link");
        std::fs::hard_link(&other, captures.join("hard")).expect("a link");
        for (name, kind) in [("symbolic", "symbolic"), ("dangling", "symbolic"), ("hard", "hard")] {
            let (status, text) = server.ask("PUT", "/capture", &format!("{{\"file\": \"{name}\"}}"));
            let why = format!("it is a {kind} link to another file; give another name");
            assert!(status == 422 && text.contains(&why), "{name}: {status}: {text}");
        }
        assert_eq!(std::fs::read_to_string(&other).expect("the file"), "what others wrote");
        assert!(!absent.exists());
        assert_eq!(server.ask("PUT", "/capture", "{\"file\": \"file\"}").0, 201);
    });
}

/// Whether a thread of the program opens a file, or is left behind by who asked for that.
fn opens_files(server: &Controlled) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.program.pid())).expect("/proc");
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.flatten().any(|task| name(task).is_ok_and(|name| name == "file\n"))
}

fn a_pipe_without_a_reader_holds_up_no_other_capture(mode: Mode) {
    in_netns(move || {
        let dir = tempfile::tempdir().expect("a folder");
        let server = Controlled::start(&[&["--pcap-dir", &dir.path().display().to_string()], mode].concat());
        let pipe = dir.path().join("pipe");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, 0o600.into(), 0).expect("a pipe");
        let (status, text) = server.ask("PUT", "/capture", "{\"file\": \"pipe\"}");
        assert!(status == 422 && text.contains("nobody reads the pipe"), "{status}: {text}");
        assert_eq!(server.ask("DELETE", "/capture", "").0, 404);
        assert_eq!(server.ask("PUT", "/capture", "{\"file\": \"file\"}").0, 201);
        wait_until("no thread is left that would write to who reads it later", || !opens_files(&server));
        assert_eq!(server.ask("DELETE", "/capture", "").0, 204);
        // A reader that comes in time has the capture.
        let control = server.control();
        let asked = std::thread::spawn(move || ask(&control, "PUT", "/capture", "{\"file\": \"pipe\"}"));
        let mut reader = File::open(&pipe).expect("a reader");
        assert_eq!(asked.join().expect("an answer").0, 201);
        assert_eq!(server.ask("DELETE", "/capture", "").0, 204);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("the end");
        let (capture, left) = captures::read(&read);
        assert!(left == 0 && capture.program.starts_with("zerowire"), "a whole capture: {capture:?}");
    });
}

/// The file may have changed, or gone.
fn a_limit_or_a_guard_alone_reads_no_metadata(mode: Mode) {
    in_netns(move || {
        let server = Controlled::start(&[&["--metadata-token", "optional"], mode].concat());
        let file = server.path("file");
        std::fs::write(&file, "{\"host\": \"one\"}").expect("metadata");
        let vm = json!({ "socket": server.path("zwm"), "port": "tap:zwm", "metadata": file }).to_string();
        assert_eq!(server.ask("PUT", "/vms/zwm", &vm).0, 201);
        let mut guest = Guest::start(connect(&server.path("zwm")));
        let host = |guest: &mut Guest, port| http::get(guest, port, "/host");
        assert_eq!(host(&mut guest, 2000), "one");
        std::fs::write(&file, "{\"host\": \"two\"}").expect("metadata");
        for (port, body) in (2001..).zip(["{\"tx-limit\": \"1G/s\"}", "{\"guard\": \"vlan=off\"}", "{}"]) {
            let (status, text) = server.ask("PATCH", "/vms/zwm", body);
            assert_eq!(status, 200, "{body}: {text}");
            assert_eq!(host(&mut guest, port), "one", "{body}");
        }
        for key in ["tx-limit", "guard"] {
            server.program.wait_log(&format!("zwm: changed by the control socket: {key}\n"));
        }
        std::fs::remove_file(&file).expect("no metadata");
        let (status, text) = server.ask("PATCH", "/vms/zwm", "{\"tx-limit\": null}");
        assert_eq!(status, 200, "{text}");
        let both = json!({ "metadata": file, "guard": null }).to_string();
        let (status, text) = server.ask("PATCH", "/vms/zwm", &both);
        assert!(status == 422 && text.contains("\"/metadata\""), "{status}: {text}");
        assert_eq!(server.json("/vms/zwm")["config"]["guard"], "vlan=off", "nothing of that has changed");
        assert_eq!(host(&mut guest, 2010), "one");
    });
}
