//! A process that serves many VMs which do nothing does nothing either, and each VM takes the same.

use std::path::Path;
use std::time::Duration;

use crate::support::{Guest, Program, Restrict, connect, in_netns, wait_until};
use zerowire_guest::vsock::{VsockDriver, VsockOptions};
use zerowire_guest::{GuestAddr, GuestMemory};
use zerowire_testkit::net::veth;
use zerowire_testkit::own_process;

/// What a process has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Has {
    threads: usize,
    descriptors: usize,
}

fn has(program: &Program) -> Has {
    let count = |what| std::fs::read_dir(format!("/proc/{}/{what}", program.pid())).expect("/proc").count();
    Has { threads: count("task"), descriptors: count("fd") }
}

/// How often threads of the process gave a CPU away: each time that one slept, it had been awake.
fn switches(program: &Program) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", program.pid())).expect("/proc");
    let of = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
        let status = std::fs::read_to_string(task.expect("a thread").path().join("status"));
        let status = status.unwrap_or_default();
        let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
    };
    tasks.map(of).sum()
}

/// Two seconds pass without anything done. What a start leaves behind may take some time.
fn sleeps(program: &Program) {
    wait_until("two seconds without anything done", || {
        let before = switches(program);
        std::thread::sleep(Duration::from_secs(2));
        switches(program) == before
    });
}

/// All guests are this process's, which is the test's own.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("a higher limit");
}

/// Starts a process with `vms` VMs and connects a guest to each. All VMs take as many threads and
/// descriptors, and none is awake.
fn is_free<G>(
    vms: usize,
    start: impl FnOnce(&[String]) -> Program,
    spec: impl Fn(usize, &Path) -> String,
    guest: impl Fn(&Path) -> G,
) {
    allow_descriptors();
    let dir = tempfile::tempdir().expect("a directory");
    let socket = |vm: usize| dir.path().join(format!("vm{vm}"));
    let args: Vec<String> = (0..vms).flat_map(|vm| ["--vm".to_owned(), spec(vm, &socket(vm))]).collect();
    let program = start(&args);
    let mut guests = vec![guest(&socket(0))];
    sleeps(&program);
    let mut before = has(&program);
    let mut each = None;
    for vm in 1..vms {
        guests.push(guest(&socket(vm)));
        let now = has(&program);
        let more =
            Has { threads: now.threads - before.threads, descriptors: now.descriptors - before.descriptors };
        assert_eq!(*each.get_or_insert(more), more, "VM {vm}");
        before = now;
    }
    sleeps(&program);
    assert!(!program.log().contains("ERROR"), "{}", program.log());
    drop(guests);
    sleeps(&program);
}

/// Soft and hard limit: the program raises the one to the other.
const LIMITS: Restrict = Restrict { descriptors: Some((256, 8192)), ..NONE };
const NONE: Restrict = Restrict {
    memlock: None,
    no_net_admin: false,
    no_net_raw: false,
    no_packets: None,
    descriptors: None,
    fd: None,
    handed: [None; 2],
    unread: false,
    stdout: None,
    stderr: None,
};

#[test]
fn many_idle_vms_on_taps_cost_nothing() {
    own_process!();
    in_netns(|| {
        let spec =
            |vm: usize, socket: &Path| format!("name=vm{vm},socket={},port=tap:zwi{vm}", socket.display());
        is_free(64, |args| Program::restricted(args, LIMITS), spec, |socket| Guest::start(connect(socket)));
    });
}

#[test]
fn idle_vms_on_packet_ports_cost_nothing() {
    own_process!();
    in_netns(|| {
        (0..4).for_each(|vm| veth::veth(&format!("zwi{vm}"), &format!("peer{vm}"), 1, 1500));
        let spec = |vm: usize, socket: &Path| {
            format!("name=vm{vm},socket={},port=packet:zwi{vm},receive=ring", socket.display())
        };
        is_free(4, |args| Program::restricted(args, LIMITS), spec, |socket| Guest::start(connect(socket)));
    });
}

#[test]
fn many_idle_vsock_devices_cost_nothing() {
    own_process!();
    let spec = |vm: usize, socket: &Path| {
        let path = socket.display();
        format!("name=vm{vm},cid={},socket={path},uds={path}.host", vm + 3)
    };
    let guest = |socket: &Path| {
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
        VsockDriver::start(connect(socket), &memory, &VsockOptions::default())
            .unwrap_or_else(|e| panic!("{e}"))
    };
    is_free(256, |args| Program::vsock(args, LIMITS), spec, guest);
}
