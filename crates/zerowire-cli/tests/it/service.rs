//! What a service manager hands over, and what it is told. The tests are the manager.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::control::{ask, dial};
use crate::support::processes::{Frozen, child};
use crate::support::{Guest, PATIENCE, Peer, Program, Restrict, connect, file_of_vms, in_netns, wait_until};

/// Starts the program as a manager does: its process id is in LISTEN_PID, its sockets are
/// descriptors from 3 on.
fn managed(args: &[&str], sockets: &[(&str, &UnixListener)], more: &[(&str, &str)]) -> Program {
    // The shell becomes the program, and so knows its process id.
    let mut command = Command::new("sh");
    command.args(["-c", "LISTEN_PID=$$ exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_zerowire")]).args(args);
    let names: Vec<_> = sockets.iter().map(|(name, _)| *name).collect();
    command.env("LISTEN_FDS", sockets.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    command.envs(more.iter().copied());
    let fd = |n: usize| sockets.get(n).map(|(_, socket)| socket.as_raw_fd());
    Program::of(command, Restrict { handed: [fd(0), fd(1)], ..Restrict::default() })
}

fn listener(dir: &Path, name: &str) -> UnixListener {
    UnixListener::bind(dir.join(name)).expect("a socket")
}

/// A file with VMs on taps of their names. Their paths are those of nobody's sockets.
fn file(dir: &Path, vms: &[(&str, &str)]) -> String {
    file_of_vms(dir, vms, ".unused")
}

fn serves(dir: &Path, socket: &str, tap: &str) {
    Guest::start(connect(&dir.join(socket))).ping(&mut Peer::new(tap));
}

#[test]
fn each_vm_has_the_socket_of_its_name() {
    in_netns(|| each_has_its_socket(&["--sandbox", "off"]));
}

#[test]
fn each_vm_has_the_socket_of_its_name_in_a_sandbox() {
    in_netns(|| each_has_its_socket(&["--sandbox", "on"]));
}

fn each_has_its_socket(more: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = (listener(dir.path(), "a"), listener(dir.path(), "b"));
    let config = file(dir.path(), &[("zwsa", ""), ("zwsb", ""), ("zwown", "")]);
    let args = [&["net", "--config", &config], more].concat();
    let program = managed(&args, &[("zwsb", &b), ("zwsa", &a)], &[]);
    drop((a, b));
    program.wait_log("zwown: listening on");
    for (socket, tap) in [("a", "zwsa"), ("b", "zwsb"), ("zwown.unused", "zwown")] {
        serves(dir.path(), socket, tap);
    }
    assert!(!dir.path().join("zwsa.unused").exists(), "its own socket is not made");
    program.stop();
    assert!(dir.path().join("a").exists(), "the manager's socket is not the program's to remove");
    assert!(!dir.path().join("zwown.unused").exists());
}

/// Front ends are refused, although the manager listens on.
fn is_closed(path: &Path) -> bool {
    dial(path).read(&mut [0]).ok() == Some(0)
}

#[test]
fn a_socket_refuses_while_its_vm_drains_or_is_away() {
    in_netns(|| refuses_until_its_vm_comes_back("off"));
    in_netns(|| refuses_until_its_vm_comes_back("on"));
}

fn refuses_until_its_vm_comes_back(sandbox: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = (listener(dir.path(), "a"), listener(dir.path(), "b"));
    let (both, at_b) = ([("zwsleft", ""), ("zwsgone", "")], dir.path().join("b"));
    let (config, control) = (file(dir.path(), &both), dir.path().join("control"));
    let args =
        ["net", "--sandbox", sandbox, "--config", &config, "--control", &control.display().to_string()];
    let program = managed(&args, &[("zwsleft", &a), ("zwsgone", &b)], &[]);
    program.wait_log("control socket at");
    let has = || ask(&control, "GET", "/vms/zwsgone", "").0 == 200;
    let guest = Guest::start(connect(&at_b));
    assert_eq!(ask(&control, "POST", "/vms/zwsgone/drain", "").0, 202);
    assert!(is_closed(&at_b) && has(), "its front end is the last one");
    drop(guest);
    wait_until("it is drained", || !has());
    assert!(is_closed(&at_b));
    // The file has it, and the socket is that of its name.
    program.signal(libc::SIGHUP);
    program.wait_log("added: zwsgone");
    serves(dir.path(), "b", "zwsgone");
    let waits = UnixStream::connect(&at_b).expect("the manager listens");
    file(dir.path(), &both[..1]);
    program.signal(libc::SIGHUP);
    program.wait_log("removed: zwsgone");
    drop(waits);
    assert!(is_closed(&at_b));
    // Who adds it gives the path.
    let vm = format!(r#"{{"socket": "{}", "port": "tap:zwsgone"}}"#, at_b.display());
    assert_eq!(ask(&control, "PUT", "/vms/zwsgone", &vm).0, 201);
    serves(dir.path(), "b", "zwsgone");
    assert_eq!(ask(&control, "DELETE", "/vms/zwsgone", "").0, 204);
    assert!(is_closed(&at_b));
    serves(dir.path(), "a", "zwsleft");
    program.stop();
    // Who connects now waits for the next process.
    let waits = UnixStream::connect(&at_b).expect("the manager listens");
    waits.set_nonblocking(true).expect("no waiting");
    assert_eq!((&waits).read(&mut [0]).map_err(|e| e.kind()), Err(std::io::ErrorKind::WouldBlock));
}

#[test]
fn a_socket_refuses_while_its_vsock_vm_is_away() {
    for sandbox in ["off", "on"] {
        let dir = tempfile::tempdir().expect("a directory");
        let (socket, at) = (listener(dir.path(), "s"), dir.path().join("s"));
        let [uds, control] = ["host", "control"].map(|name| dir.path().join(name).display().to_string());
        let args = ["vsock", "--sandbox", sandbox, "--cid", "3", "--uds", &uds, "--control", &control];
        let program = managed(&args, &[("s", &socket)], &[]);
        program.wait_log("control socket at");
        let control = Path::new(&control);
        for (method, target, status) in [("DELETE", "/vms/vm0", 204), ("POST", "/vms/vm0/drain", 202)] {
            drop(connect(&at));
            assert_eq!(ask(control, method, target, "").0, status);
            wait_until("it is gone", || ask(control, "GET", "/vms/vm0", "").0 == 404);
            assert!(is_closed(&at));
            let vm = format!(r#"{{"socket": "{}", "cid": 3, "uds": "{uds}"}}"#, at.display());
            assert_eq!(ask(control, "PUT", "/vms/vm0", &vm).0, 201);
        }
        drop(connect(&at));
        program.stop();
    }
}

/// The next start would refuse such a file.
#[test]
fn a_reload_puts_no_guests_port_on_a_handed_over_socket() {
    for sandbox in ["off", "on"] {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = listener(dir.path(), "x_22");
        let vm = |name: &str, cid: u32, uds: &str| {
            let [socket, uds] = [format!("{name}.unused"), uds.to_owned()]
                .map(|at| dir.path().join(at).display().to_string());
            format!(
                "[[vm]]\nname = '{name}'\n[vm.vsock]\nsocket = '{socket}'\ncid = {cid}\nuds = '{uds}'\ngroups = ['{name}']\n"
            )
        };
        let (has_socket, has_port) = (vm("a", 3, "a"), vm("b", 4, "x"));
        let file = dir.path().join("vms.toml");
        let write = |vms: &[&str]| std::fs::write(&file, vms.concat()).expect("a file");
        write(&[&has_socket]);
        let args = ["vsock", "--sandbox", sandbox, "--config", &file.display().to_string()];
        let program = managed(&args, &[("a", &socket)], &[]);
        program.wait_log("a: listening on descriptor 3");
        let is_refused = |times: usize| {
            write(&[&has_socket, &has_port]);
            program.signal(libc::SIGHUP);
            wait_until("it is refused", || program.log().matches("nothing has changed").count() == times);
        };
        is_refused(1);
        write(&[&has_port]);
        program.signal(libc::SIGHUP);
        program.wait_log("added: b; removed: a");
        is_refused(2);
        assert_eq!(program.log().matches("VM b's guest to port 22").count(), 2, "{}", program.log());
        program.stop();
    }
}

#[test]
fn a_single_vm_has_the_single_socket_and_keeps_it_for_the_next_front_end() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = listener(dir.path(), "s");
        let unused = dir.path().join("unused").display().to_string();
        let args = ["net", "--port", "tap:zwsone", "--socket", &unused];
        let program = managed(&args, &[("zerowire@zwsone.socket", &socket)], &[]);
        for _ in 0..2 {
            serves(dir.path(), "s", "zwsone");
        }
        program.wait_log(&format!("WARN --socket {unused} is not used"));
        program.stop();
        // The manager still listens: what connects now is served by the next process.
        let waits = std::thread::spawn({
            let path = dir.path().join("s");
            move || connect(&path)
        });
        let program = managed(&args, &[("s", &socket)], &[]);
        Guest::start(waits.join().expect("connected")).ping(&mut Peer::new("zwsone"));
        program.stop();
    });
}

#[test]
fn a_vsock_device_takes_a_socket_as_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = listener(dir.path(), "s");
    let uds = dir.path().join("host").display().to_string();
    let program = managed(&["vsock", "--cid", "3", "--uds", &uds], &[("vm0", &socket)], &[]);
    program.wait_log("listening on descriptor 3");
    drop(connect(&dir.path().join("s")));
    program.wait_log("front end connected");
    program.stop();
}

#[test]
fn a_socket_without_a_vm_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = listener(dir.path(), "s");
    let config = file(dir.path(), &[("zwsa", "")]);
    let (code, _, log) = managed(&["net", "--config", &config], &[("other", &socket)], &[]).result();
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("no VM takes the socket 'other' (descriptor 3)"), "{log}");
    // Those of another process are not this one's.
    in_netns(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        command.args(["net", "--config", &config]).env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
        let program = Program::of(command, Restrict::default());
        program.wait_log("zwsa: listening on");
        program.stop();
    });
}

/// The manager's end of NOTIFY_SOCKET.
struct Manager {
    socket: UnixDatagram,
    _dir: tempfile::TempDir,
    path: String,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        Self { socket, path: path.display().to_string(), _dir: dir }
    }

    /// The next message.
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let n = self.socket.recv(&mut bytes).expect("a message");
        String::from_utf8(bytes[..n].to_vec()).expect("text")
    }

    /// The next message that is no sign of life.
    fn news(&self) -> String {
        loop {
            let text = self.next();
            if text != "WATCHDOG=1" {
                return text;
            }
        }
    }

    /// Takes messages until none comes for as long as some signs of life are apart.
    fn drain_until_silent(&self) {
        self.socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a limit");
        while self.socket.recv(&mut [0; 4096]).is_ok() {}
        self.socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    }

    /// What has come by now.
    fn drain(&self) -> Vec<String> {
        self.socket.set_nonblocking(true).expect("no waiting");
        let mut bytes = [0; 4096];
        let mut all = Vec::new();
        while let Ok(n) = self.socket.recv(&mut bytes) {
            all.push(String::from_utf8_lossy(&bytes[..n]).into_owned());
        }
        self.socket.set_nonblocking(false).expect("waiting");
        all
    }
}

#[test]
fn the_manager_is_told_when_it_is_ready_how_it_fares_and_that_it_ends() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let manager = Manager::new();
        let config = file(dir.path(), &[("zwsready", "")]);
        let program = managed(&["net", "--config", &config], &[], &[("NOTIFY_SOCKET", &manager.path)]);
        assert_eq!(manager.next(), "READY=1\nSTATUS=0 of 1 VMs connected");
        // Who hears that finds the socket.
        let guest = Guest::start(connect(&dir.path().join("zwsready.unused")));
        assert_eq!(manager.next(), "STATUS=1 of 1 VMs connected");
        file(dir.path(), &[("zwsready", ""), ("zwsmore", "")]);
        program.signal(libc::SIGHUP);
        let reloading = manager.next();
        let at = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect(&reloading);
        assert!(at.parse::<u64>().is_ok_and(|at| at > 0), "{reloading}");
        assert_eq!(manager.next(), "READY=1\nSTATUS=1 of 2 VMs connected");
        drop(guest);
        assert_eq!(manager.next(), "STATUS=0 of 2 VMs connected");
        program.stop();
        assert_eq!(manager.drain(), ["STOPPING=1"]);
    });
}

#[test]
fn a_manager_whose_socket_was_full_hears_the_news_later() {
    in_netns(|| {
        let (dir, manager) = (tempfile::tempdir().expect("a directory"), Manager::new());
        let others = UnixDatagram::unbound().expect("a socket");
        others.set_nonblocking(true).expect("no waiting");
        let fill = || while others.send_to(b"other=1", &manager.path).is_ok() {};
        fill();
        let config = file(dir.path(), &[("zwsfull", "")]);
        let program = managed(&["net", "--config", &config], &[], &[("NOTIFY_SOCKET", &manager.path)]);
        program.wait_log("the service manager can't be told 'READY=1");
        let news = || loop {
            let text = manager.next();
            if text != "other=1" {
                return text;
            }
        };
        assert_eq!(news(), "READY=1\nSTATUS=0 of 1 VMs connected");
        fill();
        let guest = Guest::start(connect(&dir.path().join("zwsfull.unused")));
        wait_until("the status is not told", || {
            program.log().matches("can't be told 'STATUS=1").count() == 1
        });
        program.signal(libc::SIGHUP);
        program.wait_log("vms.toml read again");
        for begin in ["RELOADING=1\n", "READY=1\nSTATUS=1 of 1 VMs connected"] {
            let told = news();
            assert!(told.starts_with(begin), "{told}");
        }
        fill();
        let frozen = Frozen::thread(child(&program), "zwsfull-ctl");
        program.signal(libc::SIGTERM);
        program.wait_log("the service manager can't be told 'STOPPING=1'");
        // The end waits for the VM.
        let mut told = manager.drain();
        drop(frozen);
        while told.last().is_none_or(|text| text != "STOPPING=1") {
            told.push(manager.next());
        }
        drop(guest);
        program.stop();
    });
}

/// Without WATCHDOG_USEC no sign of life is sent: the test above would see it.
#[test]
fn a_control_thread_that_stands_still_keeps_signs_of_life_from_the_manager() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let manager = Manager::new();
        let socket = dir.path().join("s").display().to_string();
        let args =
            ["net", "--sandbox", "off", "--socket", &socket, "--port", "tap:zwsdog", "--name", "zwsdog"];
        let set = [("NOTIFY_SOCKET", manager.path.as_str()), ("WATCHDOG_USEC", "400000")];
        let program = managed(&args, &[], &set);
        assert_eq!(manager.news(), "READY=1\nSTATUS=0 of 1 VMs connected");
        let mut guest = Guest::start(connect(&dir.path().join("s")));
        let mut peer = Peer::new("zwsdog");
        for _ in 0..3 {
            wait_until("signs of life", || manager.next() == "WATCHDOG=1");
            guest.ping(&mut peer);
        }
        let frozen = Frozen::thread(program.pid(), "zwsdog-ctl");
        program.wait_log("VM zwsdog: no sign of life within 100ms");
        manager.drain_until_silent();
        // The main thread and the rings go on meanwhile.
        for _ in 0..5 {
            guest.ping(&mut peer);
            program.signal(libc::SIGHUP);
            assert!(manager.next().starts_with("RELOADING=1\n"), "no sign of life comes");
            assert!(manager.next().starts_with("READY=1\n"), "no sign of life comes");
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(frozen);
        wait_until("signs of life again", || manager.next() == "WATCHDOG=1");
        guest.ping(&mut peer);
        drop(guest);
        program.stop();
    });
}

/// The manager hears of the supervisor alone.
#[test]
fn a_confined_vm_that_stands_still_keeps_no_sign_of_life_from_the_manager() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let manager = Manager::new();
        let socket = dir.path().join("s").display().to_string();
        let args = ["net", "--socket", &socket, "--port", "tap:zwsbox", "--name", "zwsbox"];
        let set = [("NOTIFY_SOCKET", manager.path.as_str()), ("WATCHDOG_USEC", "400000")];
        let program = managed(&args, &[], &set);
        assert_eq!(manager.news(), "READY=1\nSTATUS=0 of 1 VMs connected");
        let mut guest = Guest::start(connect(&dir.path().join("s")));
        let mut peer = Peer::new("zwsbox");
        guest.ping(&mut peer);
        let frozen = Frozen::thread(child(&program), "zwsbox-ctl");
        manager.drain();
        for _ in 0..8 {
            wait_until("signs of life", || manager.next() == "WATCHDOG=1");
            guest.ping(&mut peer);
        }
        drop(frozen);
        drop(guest);
        program.stop();
    });
}

#[test]
fn a_manager_that_is_not_there_holds_up_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s").display().to_string();
    let uds = dir.path().join("host").display().to_string();
    let args = ["vsock", "--socket", &socket, "--cid", "3", "--uds", &uds];
    for (name, words) in [
        ("/no/such/socket", "the service manager can't be told 'READY=1"),
        ("@zerowire-no-such-manager", "the service manager can't be told 'READY=1"),
        ("vsock:2:1", "NOTIFY_SOCKET=vsock:2:1: the service manager is told nothing"),
    ] {
        let program = managed(&args, &[], &[("NOTIFY_SOCKET", name)]);
        program.wait_log(words);
        drop(connect(&dir.path().join("s")));
        program.stop();
    }
}
