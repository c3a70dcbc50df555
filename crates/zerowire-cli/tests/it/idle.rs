//! A process that serves many VMs which do nothing does nothing either, and each VM takes the same.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::processes::{children, mapped_kib};
use crate::support::{Guest, Program, Restrict, connect, in_netns, wait_until};
use zerowire_guest::vsock::{VsockDriver, VsockOptions};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_testkit::limits::allow_descriptors;
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
fn switches(pid: i32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("/proc");
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
    all_sleep(&[program.pid()]);
}

/// The same of several processes.
fn all_sleep(pids: &[i32]) {
    let all = || pids.iter().map(|pid| switches(*pid)).sum::<u64>();
    wait_until("two seconds without anything done", || {
        let before = all();
        std::thread::sleep(Duration::from_secs(2));
        all() == before
    });
}

/// Starts a process that serves `vms` VMs itself, and connects a guest to each. All VMs take as
/// many threads and descriptors, and none is awake.
fn is_free<G>(
    vms: usize,
    start: impl FnOnce(&[String]) -> Program,
    spec: impl Fn(usize, &Path) -> String,
    guest: impl Fn(&Path) -> G,
) {
    // All guests are this process's, which is the test's own.
    allow_descriptors();
    let dir = tempfile::tempdir().expect("a directory");
    let socket = |vm: usize| dir.path().join(format!("vm{vm}"));
    let mut args = vec!["--sandbox".to_owned(), "off".to_owned()];
    args.extend((0..vms).flat_map(|vm| ["--vm".to_owned(), spec(vm, &socket(vm))]));
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
    no_sockets: None,
    refused: None,
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

/// Memory that a process shares with no other one, KiB (proc_pid_smaps(5)). Left out are its
/// guest's, and packet rings, which are the kernel's: docs/packet-port.md has their size.
fn unshared_kib(pid: i32) -> u64 {
    let is_left_out = |mapping: &str| mapping.contains("memfd:guest-memory") || mapping.contains(" socket:[");
    mapped_kib(pid, &["Private_Clean:", "Private_Dirty:"], |mapping| !is_left_out(mapping))
}

/// Starts VMs in `processes` confined processes, and connects a guest to each. A process has at
/// most 2 MiB of its own, and none is awake.
fn is_cheap<G>(
    [vms, processes]: [usize; 2],
    start: impl FnOnce(&[String]) -> Program,
    spec: impl Fn(usize, &Path) -> String,
    guest: impl Fn(&Path) -> G,
) {
    // All guests are this process's, which is the test's own.
    allow_descriptors();
    let dir = tempfile::tempdir().expect("a directory");
    let socket = |vm: usize| dir.path().join(format!("vm{vm}"));
    let mut args = vec!["--sandbox".to_owned(), "on".to_owned()];
    args.extend((0..vms).flat_map(|vm| ["--vm".to_owned(), spec(vm, &socket(vm))]));
    let begin = Instant::now();
    let program = start(&args);
    program.wait_log(&format!("vm{}: served by a confined process", vms - 1));
    let started = begin.elapsed();
    let guests: Vec<_> = (0..vms).map(|vm| guest(&socket(vm))).collect();
    let children = children(&program);
    assert_eq!(children.len(), processes);
    all_sleep(&[&children[..], &[program.pid()]].concat());
    let unshared: Vec<_> = children.iter().map(|pid| unshared_kib(*pid)).collect();
    let (most, sum) = (unshared.iter().max().expect("one"), unshared.iter().sum::<u64>());
    eprintln!(
        "{vms} idle confined VMs: started in {started:.1?}; each process has {} KiB of its own, {most} KiB at most; the \
         supervisor has {} KiB; nothing was awake for 2 s",
        sum / processes as u64,
        unshared_kib(program.pid())
    );
    assert!(*most <= 2048, "{unshared:?} KiB");
    drop(guests);
    program.stop();
}

/// How many confined VMs there are. To see the figures of more of them:
/// `ZEROWIRE_IDLE_VMS=256 cargo test -p zerowire-cli --test it idle_confined -- --nocapture`.
fn confined_vms() -> usize {
    std::env::var("ZEROWIRE_IDLE_VMS").map_or(64, |n| n.parse().expect("a number"))
}

#[test]
fn idle_confined_vms_cost_2_mib_each_and_no_cpu() {
    own_process!();
    in_netns(|| {
        let spec =
            |vm: usize, socket: &Path| format!("name=vm{vm},socket={},port=tap:zwi{vm}", socket.display());
        let vms = confined_vms();
        is_cheap(
            [vms, vms],
            |args| Program::restricted(args, LIMITS),
            spec,
            |socket| Guest::start(connect(socket)),
        );
    });
}

#[test]
fn idle_confined_vms_on_packet_ports_cost_2_mib_each_and_no_cpu() {
    own_process!();
    in_netns(|| {
        (0..4).for_each(|vm| veth::veth(&format!("zwi{vm}"), &format!("peer{vm}"), 1, 1500));
        let spec = |vm: usize, socket: &Path| {
            format!("name=vm{vm},socket={},port=packet:zwi{vm},receive=ring", socket.display())
        };
        let limits = Restrict { descriptors: None, ..LIMITS };
        let start = |args: &[String]| Program::restricted(args, limits);
        is_cheap([4, 4], start, spec, |socket| Guest::start(connect(socket)));
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
    is_free(256, |args| Program::vsock(args, LIMITS), spec, vsock_guest);
}

/// Two devices share a process.
#[test]
fn idle_confined_vsock_devices_cost_2_mib_a_process_and_no_cpu() {
    own_process!();
    let spec = |vm: usize, socket: &Path| {
        let path = socket.display();
        format!("name=vm{vm},cid={},socket={path},uds={path}.host,groups=g{}", vm + 3, vm / 2)
    };
    let vms = confined_vms();
    is_cheap([vms, vms.div_ceil(2)], |args| Program::vsock(args, LIMITS), spec, vsock_guest);
}

fn vsock_guest(socket: &Path) -> (VsockDriver<VhostUser>, impl Sized + use<>) {
    let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
    VsockDriver::start(connect(socket), &memory, &VsockOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}
