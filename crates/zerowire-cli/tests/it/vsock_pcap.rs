//! `zerowire vsock --pcap`: files that other programs read. The program captures itself, or by
//! confined processes. Run as root.

use std::path::{Path, PathBuf};

use serde_json::Value;
use zerowire_testkit::captures::{CaptureFile, read_file};

use crate::support::processes::{child, kill};
use crate::support::vsock::Guest;
use crate::support::{Program, Restrict, wait_until};

const LINKTYPE_VSOCK: u16 = 271;

/// VMs `a` and `b`, which may reach each other.
struct Scene {
    program: Program,
    dir: tempfile::TempDir,
}

impl Scene {
    fn start(options: &[&str], mode: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let vm = |name, cid| {
            format!("name={name},cid={cid},socket={},uds={}", path(&format!("{name}.s")), path(name))
        };
        let args = ["--json".to_owned(), "--vm".to_owned(), vm("a", 3), "--vm".to_owned(), vm("b", 4)];
        let args: Vec<_> = args.iter().map(String::as_str).chain(options.iter().copied()).collect();
        let program = Program::vsock(&[&args[..], mode].concat(), Restrict::default());
        Self { program, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An exchange of the VM's guest with a host program.
    fn exchange(&self, vm: &str) {
        let mut guest = Guest::start(&self.path(&format!("{vm}.s")));
        let (conn, mut stream) = guest.open(&self.path(vm), 1000);
        guest.ping(conn, &mut stream);
    }

    /// What was printed last.
    fn stop(self) -> Value {
        let (out, _) = self.program.stop();
        serde_json::from_str(out.lines().last().expect("a line")).expect("JSON")
    }
}

/// Runs a test without and with the sandbox.
fn in_both(test: fn(&[&str])) {
    test(&["--sandbox", "off"]);
    test(&["--sandbox", "on"]);
}

/// How many packets a file has of the VM with this name.
fn packets_of(file: &CaptureFile, vm: &str) -> usize {
    let is_its = |n: u32| file.interfaces[n as usize].name == vm;
    file.packets.iter().filter(|p| is_its(p.interface)).count()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn packets_of_each_vm_are_captured() {
    in_both(|mode| {
        let files = tempfile::tempdir().expect("a folder");
        let path = files.path().join("c.pcapng");
        let scene = Scene::start(&["--pcap", &text(&path)], mode);
        scene.exchange("a");
        scene.exchange("b");
        let stats = scene.stop();
        let file = read_file(&path);
        for (interface, (name, cid)) in file.interfaces.iter().zip([("a", "CID 3"), ("b", "CID 4")]) {
            assert_eq!((&*interface.name, &*interface.description), (name, cid));
            assert_eq!((interface.link, interface.snaplen), (LINKTYPE_VSOCK, 262_144));
        }
        // A request and its answer, and a few bytes each way.
        assert!(packets_of(&file, "a") >= 4 && packets_of(&file, "b") >= 4, "{file:?}");
        let sent = |p: &&zerowire_testkit::captures::CapturedPacket| p.bytes.ends_with(b"there");
        assert_eq!(file.packets.iter().filter(sent).count(), 2);
        assert!(file.packets.iter().filter(sent).all(|p| p.direction == 2), "from the guests");
        assert_eq!(stats["vms"][0]["capture"]["lost"], 0, "{stats}");
    });
}

#[test]
fn a_capture_has_the_vms_and_the_bytes_that_were_asked_for() {
    in_both(|mode| {
        let files = tempfile::tempdir().expect("a folder");
        let path = files.path().join("c.pcapng");
        let options = ["--pcap", &text(&path), "--pcap-vm", "b", "--pcap-snaplen", "40"];
        let scene = Scene::start(&options, mode);
        scene.exchange("a");
        scene.exchange("b");
        let stats = scene.stop();
        let file = read_file(&path);
        assert!(file.interfaces.len() == 1 && packets_of(&file, "b") >= 4, "{file:?}");
        assert!(file.packets.iter().all(|p| p.bytes.len() == 40 && p.len >= 76), "{file:?}");
        assert_eq!(stats["vms"][0]["capture"], Value::Null);
    });
}

#[test]
fn files_follow_each_other() {
    in_both(|mode| {
        let files = tempfile::tempdir().expect("a folder");
        let path = files.path().join("c.pcapng");
        let scene = Scene::start(&["--pcap", &text(&path), "--pcap-rotate", "1M,2"], mode);
        let mut guest = Guest::start(&scene.path("a.s"));
        let (conn, mut stream) = guest.open(&scene.path("a"), 1000);
        let reader = std::thread::spawn(move || {
            std::io::copy(&mut stream, &mut std::io::sink()).expect("the guest's bytes")
        });
        guest.stack.send_all(conn, &vec![7; 3 << 20], crate::support::PATIENCE).expect("sent");
        guest.stack.close(conn).expect("closed");
        assert_eq!(guest.until(reader), 3 << 20);
        drop(guest);
        scene.stop();
        for name in ["c.pcapng", "c.pcapng.1"] {
            let file = files.path().join(name);
            assert!(file.metadata().expect("a file").len() <= 1 << 20, "{name}");
            assert_eq!(read_file(&file).interfaces[0].link, LINKTYPE_VSOCK);
        }
    });
}

/// The file goes on with the packets of the next process.
#[test]
fn a_capture_outlives_the_process_of_its_vms() {
    let files = tempfile::tempdir().expect("a folder");
    let path = files.path().join("c.pcapng");
    let scene = Scene::start(&["--pcap", &text(&path)], &["--sandbox", "on"]);
    scene.exchange("a");
    let captured = || {
        scene.program.signal(libc::SIGUSR1);
        let out = scene.program.out();
        let stats: Option<Value> = out.lines().last().and_then(|line| serde_json::from_str(line).ok());
        stats.and_then(|s| s["vms"][0]["capture"]["captured"].as_u64()).unwrap_or(0)
    };
    wait_until("it is captured", || captured() >= 4);
    kill(child(&scene.program), libc::SIGKILL);
    scene.program.wait_log("a: its process ended: killed by signal 9");
    scene.exchange("a");
    scene.stop();
    let file = read_file(&path);
    let sent = file.packets.iter().filter(|p| p.bytes.ends_with(b"there")).count();
    assert_eq!((file.interfaces.len(), sent), (2, 2), "{file:?}");
}
