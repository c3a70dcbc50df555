//! `zerowire net --pcap`: files that other programs read, files that follow each other, disks and
//! pipes that are full.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::support::control::Controlled;
use crate::support::{Guest, Peer, Program, Restrict, connect, frames, in_netns, wait_until};
use zerowire_testkit::captures::{CaptureFile, read, read_file};
use zerowire_testkit::{not_run, own_process};

/// The program on a tap, with these options, and its guest.
struct Scene {
    program: Program,
    guest: Guest,
    peer: Peer,
    dir: tempfile::TempDir,
}

impl Scene {
    fn start(name: &str, options: &[&str], restrict: Restrict) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("socket");
        let (at, port) = (socket.display().to_string(), format!("tap:{name}"));
        let all = [&["--socket", &at, "--port", &port, "--name", "web"], options].concat();
        let program = Program::restricted(&all, restrict);
        let guest = Guest::start(connect(&socket));
        let peer = Peer::new(name);
        Self { program, guest, peer, dir }
    }

    /// Frames of 20 000 bytes from the guest, as many as that.
    fn send(&mut self, frames: u32) {
        for n in 0..frames {
            let frame = frames::frame(n, 20_000);
            self.guest.send(&frame);
            assert_eq!(self.peer.expect().bytes, frame);
        }
    }

    /// Ends the program: what it printed, and its log.
    fn stop(self) -> (String, String) {
        drop(self.guest);
        self.program.stop()
    }
}

/// Runs a test without and with the sandbox, where a process of the VM's own has the frames.
fn in_both(test: fn(&[&str])) {
    in_netns(move || test(&["--sandbox", "off"]));
    in_netns(move || test(&["--sandbox", "on"]));
}

/// The numbers of the guest's frames.
fn numbers(file: &CaptureFile) -> Vec<u32> {
    file.packets.iter().filter(|p| p.direction == 2).map(|p| frames::number(&p.bytes)).collect()
}

fn file_in(dir: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = dir.path().join(name);
    let text = path.display().to_string();
    (path, text)
}

/// What a program says of a capture; None, and a line in the log, where it is not installed.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            Some(text)
        }
        Err(_) => {
            not_run(&format!(
                "a capture read by {program}: it is not installed (Debian: the package {program})"
            ));
            None
        }
    }
}

#[test]
fn an_exchange_is_captured_frame_by_frame() {
    in_both(|more| {
        let files = tempfile::tempdir().expect("a folder");
        let (path, file) = file_in(&files, "c.pcapng");
        let mut scene =
            Scene::start("zwpcap", &[&["--pcap", &file, "--json"], more].concat(), Restrict::default());
        scene.guest.ping(&mut scene.peer);
        let (out, log) = scene.stop();
        assert!(log.contains(&format!("capturing to {file}")), "{log}");
        let capture = read_file(&path);
        assert_eq!(capture.program, concat!("zerowire ", env!("CARGO_PKG_VERSION")));
        let interface = &capture.interfaces[0];
        assert_eq!((interface.link, interface.snaplen), (1, 262_144));
        assert_eq!((&*interface.name, &*interface.description), ("web", "tap:zwpcap,queues=1"));
        let ours = |p: &&zerowire_testkit::captures::CapturedPacket| p.bytes[12..14] == frames::EXPERIMENT;
        let packets: Vec<_> = capture.packets.iter().filter(ours).collect();
        let lengths = [(1, 60), (2, 1514), (3, 20_000)];
        let want = lengths
            .into_iter()
            .flat_map(|(n, len)| [(2, frames::frame(n, len)), (1, frames::frame(n + 100, len.min(1514)))]);
        let got = packets.iter().map(|p| (p.direction, p.bytes.clone()));
        assert!(got.eq(want), "each frame once, with its direction, in order");
        assert!(capture.packets.iter().all(|p| p.len as usize == p.bytes.len()));
        let count = capture.packets.len() as u64;
        assert_eq!(capture.counts, [(0, count, 0)]);
        let stats: serde_json::Value =
            serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
        assert_eq!(stats["vms"][0]["capture"]["lost"], 0);
        // Other programs count the same.
        if let Some(text) = said("tcpdump", &["-n", "-r", &file]) {
            // What it doesn't know it prints in further lines.
            let frames = text.lines().filter(|line| !line.starts_with('\t'));
            assert_eq!(frames.count() as u64, count, "{text}");
        }
        let fields = ["-n", "-r", &file, "-T", "fields", "-e", "frame.len", "-e", "frame.interface_name"];
        if let Some(text) = said("tshark", &fields) {
            assert_eq!(text.lines().count() as u64, count, "{text}");
            assert!(text.lines().any(|line| line == "20000\tweb"), "{text}");
        }
    });
}

#[test]
fn without_pcap_the_statistics_say_nothing_of_it() {
    in_netns(|| {
        let mut scene = Scene::start("zwnopcap", &["--json"], Restrict::default());
        scene.guest.ping(&mut scene.peer);
        let (out, _) = scene.stop();
        assert!(!out.contains("capture"), "{out}");
    });
}

/// The stream is on standard output, and nothing else.
#[test]
fn a_stream_on_standard_output_has_no_statistics_in_it() {
    in_both(|more| {
        let files = tempfile::tempdir().expect("a folder");
        let path = files.path().join("stream");
        let stdout = File::create(&path).expect("a file");
        let restrict = Restrict { stdout: Some(stdout.as_raw_fd()), ..Restrict::default() };
        let mut scene =
            Scene::start("zwpcapout", &[&["--pcap", "-", "--pcap-snaplen", "100"], more].concat(), restrict);
        scene.guest.ping(&mut scene.peer);
        scene.program.signal(libc::SIGUSR1);
        scene.program.wait_log("guest to port");
        let (_, log) = scene.stop();
        assert!(log.contains("capture: ") && log.contains(" 0 lost"), "{log}");
        let capture = read_file(&path);
        assert_eq!(capture.interfaces[0].snaplen, 100);
        let long = capture.packets.iter().find(|p| p.len == 20_000).expect("the long frame");
        assert_eq!(long.bytes, frames::frame(3, 20_000)[..100]);
    });
}

/// The sandbox's process hands on as much of a frame as the filter looks at.
#[test]
fn a_filter_chooses_frames() {
    in_both(|more| {
        let files = tempfile::tempdir().expect("a folder");
        let (path, file) = file_in(&files, "c.pcapng");
        let filter = ["--pcap", &file, "--pcap-snaplen", "16", "--pcap-filter", "outbound and greater 1000"];
        let mut scene = Scene::start("zwpcapfil", &[&filter, more].concat(), Restrict::default());
        scene.guest.ping(&mut scene.peer);
        scene.stop();
        let file = read_file(&path);
        let kept: Vec<_> = file.packets.iter().map(|p| (p.direction, p.len, p.bytes.len())).collect();
        assert_eq!(kept, [(2, 1514, 16), (2, 20_000, 16)]);
    });
}

#[test]
fn files_follow_each_other() {
    in_both(|more| {
        let files = tempfile::tempdir().expect("a folder");
        let (path, file) = file_in(&files, "c.pcapng");
        let options = [&["--pcap", &file, "--pcap-rotate", "1M,2"], more].concat();
        let mut scene = Scene::start("zwpcaprot", &options, Restrict::default());
        scene.send(150);
        scene.stop();
        let before = files.path().join("c.pcapng.1");
        for file in [&path, &before] {
            assert!(file.metadata().expect("a file").len() <= 1 << 20, "{}", file.display());
        }
        let all = [numbers(&read_file(&before)), numbers(&read_file(&path))].concat();
        assert_eq!(all, (150 - all.len() as u32..150).collect::<Vec<_>>());
        assert_eq!(files.path().read_dir().expect("a folder").count(), 2, "the oldest one went");
    });
}

/// A file system of 1 MiB, which this thread and what it starts see.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Self {
        std::fs::create_dir(&at).expect("a folder");
        mount_small(&at);
        Self(at)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let at = std::ffi::CString::new(self.0.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: the path ends with a zero.
        unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    }
}

fn mount_small(at: &Path) {
    let at = std::ffi::CString::new(at.as_os_str().as_encoded_bytes()).expect("a path");
    let mount = |what: &std::ffi::CStr, at: &std::ffi::CStr, flags, data: &std::ffi::CStr| {
        // SAFETY: all texts end with a zero.
        let done =
            unsafe { libc::mount(what.as_ptr(), at.as_ptr(), what.as_ptr(), flags, data.as_ptr().cast()) };
        assert_eq!(done, 0, "mount {at:?}: {}", std::io::Error::last_os_error());
    };
    // SAFETY: takes no pointers; only this thread moves, and it ends with the test.
    let alone = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(alone, 0, "no mount namespace: {}; run the tests as root", std::io::Error::last_os_error());
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE, c"");
    mount(c"tmpfs", &at, 0, c"size=1m");
}

/// The capture ends with the last frame that the disk had room for, and the guest goes on.
#[test]
fn a_full_disk_ends_the_capture_and_not_the_traffic() {
    in_both(|more| {
        let files = tempfile::tempdir().expect("a folder");
        let disk = SmallDisk::mount(files.path().join("disk"));
        let path = disk.0.join("c.pcapng");
        let file = path.display().to_string();
        let mut scene =
            Scene::start("zwpcapfull", &[&["--pcap", &file, "--json"], more].concat(), Restrict::default());
        scene.send(80);
        scene.program.wait_log(&format!("the capture to {file} ends: No space left on device"));
        scene.send(20);
        let counts = |stats: &serde_json::Value| {
            let count = |what: &str| stats["vms"][0]["capture"][what].as_u64();
            Some((count("captured")?, count("lost")?))
        };
        if !more.is_empty() {
            // The VM's process tells its frames a moment later.
            let counted = |line: &str| {
                counts(&serde_json::from_str(line).ok()?).filter(|(kept, lost)| kept + lost == 100)
            };
            wait_until("they are counted", || {
                scene.program.signal(libc::SIGUSR1);
                scene.program.out().lines().find_map(counted).is_some()
            });
        }
        let (out, _) = scene.stop();
        let got = numbers(&read_file(&path));
        assert!(!got.is_empty() && got == (0..got.len() as u32).collect::<Vec<_>>(), "{got:?}");
        let stats: serde_json::Value =
            serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
        let vm = &stats["vms"][0];
        assert_eq!(vm["transmit"]["frames"], 100);
        assert_eq!(counts(&stats), Some((got.len() as u64, 100 - got.len() as u64)), "{vm}");
    });
}

/// Somebody asked for the stream and does not read it: the guest does not wait, and neither does
/// the end.
#[test]
fn a_pipe_that_nobody_reads_holds_up_nothing() {
    in_both(|more| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let restrict = Restrict { stdout: Some(writer.as_raw_fd()), ..Restrict::default() };
        let mut scene = Scene::start("zwpcappipe", &[&["--pcap", "-", "--json"], more].concat(), restrict);
        // More than the pipe and the ring hold.
        scene.send(400);
        let is_lost = |line: &str| {
            let stats: Option<serde_json::Value> = serde_json::from_str(line).ok();
            stats.is_some_and(|s| s["vms"][0]["capture"]["lost"].as_u64().is_some_and(|n| n > 0))
        };
        wait_until("frames are counted as lost", || {
            scene.program.signal(libc::SIGUSR1);
            scene.program.log().lines().any(is_lost)
        });
        let (_, log) = scene.stop();
        assert!(log.contains("the end of the capture is lost"), "{log}");
        drop((reader, writer));
    });
}

/// The reader of the stream has gone.
#[test]
fn a_pipe_that_is_closed_ends_the_capture() {
    // A process that another test forks has the pipe's end as well.
    own_process!();
    in_netns(|| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let restrict = Restrict { stdout: Some(writer.as_raw_fd()), ..Restrict::default() };
        let mut scene = Scene::start("zwpcapgone", &["--pcap", "-"], restrict);
        scene.guest.ping(&mut scene.peer);
        drop((reader, writer));
        scene.send(1);
        scene.program.wait_log("the capture to standard output ends: Broken pipe");
        scene.guest.ping(&mut scene.peer);
        scene.stop();
    });
}

#[test]
fn a_program_that_waits_for_the_reader_of_its_pipe_can_be_ended() {
    let dir = tempfile::tempdir().expect("a folder");
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
    let socket = dir.path().join("s").display().to_string();
    let mut program =
        Program::net(&["--socket", &socket, "--port", "tap:zwno", "--pcap", &pipe.display().to_string()]);
    program.wait_log("waiting until a program reads the pipe");
    program.signal(libc::SIGTERM);
    assert_eq!(program.wait().signal(), Some(libc::SIGTERM));
}

/// A VM that is added while the program runs is in the capture.
#[test]
fn vms_come_and_go_in_one_capture() {
    in_both(|more| {
        let files = tempfile::tempdir().expect("a folder");
        let (path, file) = file_in(&files, "c.pcapng");
        let control = files.path().join("control").display().to_string();
        let options = [&["--pcap", &file, "--control", &control], more].concat();
        let mut scene = Scene::start("zwpcapvm", &options, Restrict::default());
        scene.guest.ping(&mut scene.peer);
        let socket = scene.dir.path().join("second");
        let at = socket.display().to_string();
        let ctl = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
            let output = command.args(["ctl", "--control", &control]).args(arguments).output().expect("ctl");
            assert!(output.status.success(), "{output:?}");
        };
        ctl(&["add", "second", "--socket", &at, "--port", "tap:zwpcapvm2"]);
        let mut guest = Guest::start(connect(&socket));
        guest.ping(&mut Peer::new("zwpcapvm2"));
        drop(guest);
        ctl(&["remove", "second"]);
        scene.guest.ping(&mut scene.peer);
        let so_far = || read(&std::fs::read(&path).expect("the file")).0;
        wait_until("what was counted of it is in the file", || {
            so_far().counts.iter().any(|(interface, seen, lost)| *interface == 1 && *seen > 0 && *lost == 0)
        });
        scene.stop();
        let capture = read_file(&path);
        let names: Vec<_> = capture.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["web", "second"]);
        for interface in 0..2 {
            let of = capture.packets.iter().filter(|p| p.interface == interface && p.direction == 2);
            assert_eq!(of.count(), if interface == 0 { 6 } else { 3 }, "{interface}");
        }
    });
}

#[test]
fn wrong_options_are_named() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("s").display().to_string();
        let refused = |options: &[&str], code: i32, words: &[&str]| {
            let (got, out, log) =
                Program::run(&[&["--socket", &socket, "--port", "tap:zwpcapno"], options].concat());
            assert_eq!((got, out.as_str()), (code, ""), "{options:?}: {log}");
            words.iter().for_each(|word| assert!(log.contains(word), "{options:?}: no '{word}' in {log}"));
        };
        let file = dir.path().join("c").display().to_string();
        let nowhere = dir.path().join("no/such").display().to_string();
        refused(&["--pcap", &nowhere], 1, &[&nowhere, "No such file"]);
        refused(&["--pcap", &file, "--pcap-snaplen", "0"], 2, &["--pcap-snaplen", "1..=262144"]);
        refused(&["--pcap", &file, "--pcap-snaplen", "262145"], 2, &["262145"]);
        refused(&["--pcap", &file, "--pcap-rotate", "1K,2"], 2, &["--pcap-rotate", "1M or more"]);
        refused(&["--pcap-rotate", "1M,2"], 2, &["--pcap"]);
        refused(&["--pcap-snaplen", "100"], 2, &["--pcap"]);
        refused(&["--pcap", &file, "--pcap-filter", "tcp prt 80"], 2, &["--pcap-filter", "'prt'"]);
        refused(&["--pcap", &file, "--pcap-filter", "cid 3"], 2, &["'cid' is not known", "tcp"]);
        refused(&["--pcap-filter", "tcp"], 2, &["--pcap"]);
        refused(&["--pcap", &file, "--pcap-vm", "db"], 2, &["no VM is named 'db'", "vm0"]);
        assert!(!Path::new(&file).exists(), "what is wrong makes no file");
        refused(&["--pcap", "/dev/null", "--pcap-rotate", "1M,2"], 1, &["/dev/null", "regular file"]);
        refused(&["--pcap", "-", "--pcap-rotate", "1M,2"], 1, &["standard output", "regular file"]);
    });
}

/// A capture begins and ends while a guest runs. Frames before and behind it are not in it.
#[test]
fn the_control_socket_begins_and_ends_a_capture() {
    in_both(|more| {
        let files = tempfile::tempdir().expect("a folder");
        let server =
            Controlled::start(&[&["--pcap-dir", &files.path().display().to_string()], more].concat());
        server.add("zwpcapctl");
        let mut guest = Guest::start(connect(&server.path("zwpcapctl")));
        let mut peer = Peer::new("zwpcapctl");
        let mut send = |numbers: std::ops::Range<u32>| {
            for n in numbers {
                guest.send(&frames::frame(n, 100));
                assert_eq!(frames::number(&peer.expect().bytes), n);
            }
        };
        send(0..3);
        assert_eq!(server.ask("GET", "/capture", "").0, 404);
        assert_eq!(server.ask("DELETE", "/capture", "").0, 404);
        let (status, text) = server.ask("PUT", "/capture", "{\"file\": \"one\", \"snaplen\": 64}");
        assert_eq!(status, 201, "{text}");
        let shown = server.json("/capture");
        let path = files.path().join("one");
        assert_eq!(
            (&shown["file"], &shown["state"]),
            (&path.display().to_string().into(), &"running".into())
        );
        let (status, text) = server.ask("PUT", "/capture", "{\"file\": \"two\"}");
        assert!(status == 409 && text.contains("one runs: end it first"), "{text}");
        send(3..8);
        let so_far = || read(&std::fs::read(&path).expect("the file")).0;
        wait_until("all are written", || numbers(&so_far()).last() == Some(&7));
        assert_eq!(server.ask("DELETE", "/capture", "").0, 204);
        let file = read_file(&path);
        assert_eq!(numbers(&file), [3, 4, 5, 6, 7]);
        assert_eq!(file.counts.len(), 1);
        send(8..11);
        assert_eq!(server.json("/stats")["vms"][0].get("capture"), None);
        assert_eq!(read_file(&path), file, "nothing comes behind its end");
        // Another one, of other VMs.
        let (status, text) = server.ask("PUT", "/capture", "{\"file\": \"two\", \"vms\": [\"other\"]}");
        assert!(status == 201 && text.contains("\"unknown_vms\":[\"other\"]"), "{text}");
        send(0..3);
        assert_eq!(server.ask("DELETE", "/capture", "").0, 204);
        assert!(read_file(&files.path().join("two")).interfaces.is_empty());
        // As by `ulimit -f` and LimitFSIZE=: there is no room for how the file begins.
        let may_have = |current| {
            let limit = Rlimit { current, ..getrlimit(Resource::Fsize) };
            prlimit(Pid::from_raw(server.program.pid()), Resource::Fsize, limit).expect("a limit")
        };
        let before = may_have(Some(0));
        let (status, text) = server.ask("PUT", "/capture", "{\"file\": \"full\"}");
        assert!(status == 422 && text.contains("File too large"), "{status} {text}");
        assert_eq!(server.ask("GET", "/capture", "").0, 404);
        may_have(before.current);
        std::fs::remove_file(files.path().join("full")).expect("removed");
        send(0..3);
        for (body, pointer) in [
            ("{}", ""),
            ("{\"file\": \"../x\"}", "/file"),
            ("{\"file\": \"no such/x\"}", "/file"),
            ("{\"file\": \"x\", \"snaplen\": 0}", "/snaplen"),
            ("{\"file\": \"x\", \"rotate\": \"1,1\"}", "/rotate"),
            ("{\"file\": \"x\", \"vm\": []}", "/vm"),
            ("{\"file\": \"x\", \"filter\": \"cid 3\"}", "/filter"),
        ] {
            let (status, text) = server.ask("PUT", "/capture", body);
            let error: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((status, &error["pointer"]), (400, &pointer.into()), "{body}: {text}");
        }
        assert_eq!(files.path().read_dir().expect("a folder").count(), 2, "bad requests make no file");
    });
}

/// Who may manage writes no files, unless the program was started for that.
#[test]
fn without_a_folder_the_control_socket_begins_no_capture() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let (status, text) = server.ask("PUT", "/capture", "{\"file\": \"one\"}");
        assert!(status == 403 && text.contains("--pcap-dir"), "{text}");
    });
}

#[test]
fn ctl_begins_shows_and_ends_a_capture() {
    in_netns(|| {
        let files = tempfile::tempdir().expect("a folder");
        let server = Controlled::start(&["--pcap-dir", &files.path().display().to_string()]);
        let ctl = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
            command.arg("ctl").args(arguments).arg("--control").arg(server.control());
            let output = command.output().expect("ctl");
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let file = files.path().join("c").display().to_string();
        let running = (Some(0), format!("capturing to {file}\n"));
        assert_eq!(
            ctl(&["capture", "start", "c", "--snaplen", "96", "--rotate", "1M,2", "--filter", "tcp"]),
            running
        );
        assert_eq!(server.json("/capture")["filter"], "tcp");
        assert_eq!(ctl(&["capture", "show"]), running);
        assert_eq!(ctl(&["capture", "stop"]), (Some(0), "the capture has ended\n".to_owned()));
        assert_eq!(ctl(&["capture", "stop"]).0, Some(1));
        assert_eq!(ctl(&["capture", "start", "a/b"]).0, Some(2));
        assert!(read_file(Path::new(&file)).packets.is_empty());
    });
}
