//! What checksums and segments in software cost the back end of an AF_XDP port: CPU time of its
//! worker a KiB of payload, over a veth in a network namespace of its own, for the same payload as
//! frames that the guest has cut and summed itself, as such frames without a checksum, and as
//! chains of 60 KB that the back end cuts; hot (256 KiB of payload again and again) and cold (64
//! MiB).
//!
//! ```text
//! cargo run --release -p zerowire-net --example offload_cost [ROUNDS [MTU]]
//! ```
//!
//! The figures are medians of rounds that take turns. Nobody listens at the peer; what the kernel
//! does there for a frame before it throws it away is in all figures alike.

use std::time::Duration;

use zerowire_guest::net::{FramePool, FrameShape, Layout, NetDriver, NetOptions, QueuePair, VirtioNetHdr};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_net::offload::testing::Example;
use zerowire_net::{PathMode, Policy, Server, VmConfig};
use zerowire_testkit::net::in_netns;
use zerowire_vhost::serve::Endpoint;
use zerowire_wire::vnet::Gso;

/// Payload of a round, bytes.
const ROUND_BYTES: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// A way to send payload.
struct Case {
    name: &'static str,
    vm: usize,
    payload: usize,
    gso: u16,
    csum: bool,
    layout: Layout,
    working_set: usize,
}

fn run(program: &str, arguments: &[&str]) {
    let status = std::process::Command::new(program).args(arguments).status();
    assert!(status.is_ok_and(|s| s.success()), "{program} {arguments:?}");
}

/// CPU time of the worker threads of this process, ns: /proc/self/task/N/schedstat of those that
/// the guest's thread is not.
fn worker_time(own: u64) -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("threads").flatten() {
        if task.file_name().to_string_lossy().parse() == Ok(own) {
            continue;
        }
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    sum
}

fn main() {
    in_netns(measure);
}

fn measure() {
    let argument = |i| std::env::args().nth(i).and_then(|n| n.parse().ok());
    let (rounds, mtu) = (argument(1).unwrap_or(9), argument(2).unwrap_or(1500));
    // IPv4, and TCP with timestamps.
    let size = mtu - 52;
    for (port, peer) in [("v0", "v1"), ("w0", "w1")] {
        run("ip", &["link", "add", port, "type", "veth", "peer", "name", peer]);
        for name in [port, peer] {
            run("ip", &["link", "set", name, "mtu", &mtu.to_string(), "up"]);
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let vm = |name: &str, port: &str, mode| {
        VmConfig::new(name, Endpoint::Path(dir.path().join(name)), port.parse().expect("a port"))
            .policy(Policy::default().mode(mode))
    };
    let server = Server::start(vec![
        vm("lend", "xdp:v0,mode=copy,offloads=on", PathMode::Auto),
        vm("copy", "xdp:w0,mode=copy,offloads=on", PathMode::Copy),
    ])
    .unwrap_or_else(|e| panic!("{e}"));
    let own = rustix::thread::gettid().as_raw_pid() as u64;
    let case = |name, vm, payload, gso, csum, layout, cold| Case {
        name,
        vm,
        payload,
        gso,
        csum,
        layout,
        working_set: if cold { 64 << 20 } else { 256 << 10 },
    };
    let mut cases = Vec::new();
    let many = 60_000 / size * size;
    for cold in [false, true] {
        cases.push(case("single frames, plain", 0, size, 0, false, Layout::Split, cold));
        cases.push(case("single frames, checksum", 0, size, 0, true, Layout::Split, cold));
        cases.push(case("60 KB cut", 0, many, size as u16, true, Layout::Pages, cold));
        cases.push(case("60 KB cut, --path copy", 1, many, size as u16, true, Layout::Pages, cold));
    }
    let mut results = vec![Vec::new(); cases.len()];
    let mut guests: Vec<_> = ["lend", "copy"].map(|vm| guest(&dir.path().join(vm))).into();
    let pools: Vec<_> = cases.iter().map(|c| pool(&guests[c.vm].2, c)).collect();
    for round in 0..=rounds {
        for ((case, pool), result) in cases.iter().zip(&pools).zip(&mut results) {
            let before = worker_time(own);
            let sent = send(&mut guests[case.vm].1[0], pool, ROUND_BYTES / case.payload);
            std::thread::sleep(Duration::from_millis(5));
            let kib = (sent * case.payload) as f64 / 1024.0;
            if round > 0 {
                let ns = (worker_time(own) - before) as f64;
                result.push(ns / kib);
            }
        }
    }
    println!(
        "MTU {mtu}: {size} bytes of payload a frame, median of {rounds} rounds of {} MiB",
        ROUND_BYTES >> 20
    );
    println!("{:<32} {:>13} {:>8} {:>12}", "worker's CPU time", "ns a KiB", "least", "ns a frame");
    for (case, result) in cases.iter().zip(&mut results) {
        result.sort_by(f64::total_cmp);
        let median = result[result.len() / 2];
        let name = format!("{}, {}", case.name, if case.working_set > 1 << 20 { "cold" } else { "hot" });
        println!("{name:<32} {median:>13.0} {:>8.0} {:>12.0}", result[0], median * size as f64 / 1024.0);
    }
    for vm in server.stats().vms {
        println!("{}: {:?}", vm.name, vm.transmit.totals);
    }
}

fn guest(path: &std::path::Path) -> (NetDriver<VhostUser>, Vec<QueuePair>, GuestMemory) {
    let memory = GuestMemory::new(&[(GuestAddr(0), 448 << 20)]).unwrap_or_else(|e| panic!("{e}"));
    let transport = VhostUser::connect(path, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    let options = NetOptions {
        tx: FrameShape { layout: Layout::Split, indirect: true, capacity: 4096 },
        tx_slots: 1,
        ..NetOptions::default()
    };
    let (driver, pairs) = NetDriver::start(transport, &memory, &options).unwrap_or_else(|e| panic!("{e}"));
    (driver, pairs, memory)
}

fn pool(memory: &GuestMemory, case: &Case) -> FramePool {
    let example = Example {
        kind: Gso::TcpV4,
        v6: false,
        tags: 0,
        options: 3,
        flags: 0x10,
        payload: case.payload,
        seed: 1,
    };
    let mut header = [0; 12];
    if case.csum {
        header[..10].copy_from_slice(&example.header(case.gso));
        if case.gso == 0 {
            header[1..6].fill(0);
        }
    }
    let mut frame = example.frame();
    if !case.csum {
        let (at, sum) = (example.transport_at() + 16, example.checksum(&frame));
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let shape = FrameShape { layout: case.layout, indirect: true, capacity: frame.len() };
    let header = VirtioNetHdr::decode(&header);
    FramePool::filled(memory, shape, case.working_set, &header, &frame).unwrap_or_else(|e| panic!("{e}"))
}

/// Sends `count` frames of the pool. Returns how many.
fn send(pair: &mut QueuePair, pool: &FramePool, count: usize) -> usize {
    let (mut cursor, mut sent) = (0, 0);
    while sent < count {
        sent += pair.tx.submit_cycle(pool, &mut cursor, (count - sent).min(64));
        pair.tx.publish().unwrap_or_else(|e| panic!("{e}"));
        if pair.tx.in_flight() > 128 {
            pair.tx.wait(64, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        }
        pair.tx.reap().unwrap_or_else(|e| panic!("{e}"));
    }
    assert!(pair.tx.drain(PATIENCE).unwrap_or_else(|e| panic!("{e}")), "all given back");
    sent
}
