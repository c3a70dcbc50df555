//! A limit is the rate at which bytes pass, within 2 %: at guests of confined processes, both ways.
//!
//! To try other rates, in Mbit/s, with an optimised build (a test fails at a rate that the machine
//! does not reach): `ZEROWIRE_LIMIT_RATES=1000,10000 cargo test --release -p zerowire-cli --test it
//! limit_rates -- --nocapture --test-threads 1`.

use std::io::{Read, Write};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zerowire_guest::net::{FramePool, FrameShape, Layout, VirtioNetHdr};

use crate::support::{
    Guest, PATIENCE, Peer, Program, Restrict, connect, frames, in_netns, measure_until, vsock,
};
use zerowire_testkit::SetAtEnd;
use zerowire_testkit::net::ip;

/// How far a rate may be off.
const RIGHT: RangeInclusive<f64> = 0.98..=1.02;
/// The bucket is emptied before.
const BEFORE: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(2);
/// The queues hold what passes in many of these.
const PAUSE: Duration = Duration::from_micros(500);

/// Rates to try, Mbit/s. By default those that a guest of an unoptimised build reaches.
fn rates(default: &str) -> Vec<u64> {
    let rates = std::env::var("ZEROWIRE_LIMIT_RATES").unwrap_or_else(|_| default.to_owned());
    rates.split(',').map(|rate| rate.parse().expect("a number")).collect()
}

/// Enough frames pass in a window that one more makes no difference.
fn frame_len(mbits: u64) -> usize {
    match mbits {
        0..=1 => 500,
        2..=100 => 1514,
        _ => 60_000,
    }
}

/// The rate in bit/s at which bytes move. `turn` moves what can be moved now, and returns how many
/// bytes that were.
fn measure(mut turn: impl FnMut() -> usize) -> f64 {
    let (begin, mut first, mut bytes) = (Instant::now(), None, 0);
    loop {
        let moved = turn();
        let now = Instant::now();
        match first {
            _ if moved == 0 => std::thread::sleep(PAUSE),
            None if now - begin >= BEFORE => first = Some(now),
            None => {}
            Some(first) => {
                bytes += moved;
                if now - first >= MEASURED {
                    return 8.0 * bytes as f64 / (now - first).as_secs_f64();
                }
            }
        }
        assert!(begin.elapsed() < PATIENCE, "nothing moves");
    }
}

/// `round` measures a rate in bit/s that has to be this one.
fn is_right(way: &str, mbits: u64, mut round: impl FnMut() -> f64) {
    let ratio = |rate: f64| rate / (1e6 * mbits as f64);
    let what = format!("{way}, rate to the limit of {mbits} Mbit/s");
    measure_until(&what, |ratio| RIGHT.contains(ratio), || ratio(round()));
}

#[test]
fn frames_pass_at_the_rate_of_the_limit() {
    in_netns(|| {
        for mbits in rates("1,100,1000") {
            let dir = tempfile::tempdir().expect("a directory");
            let socket = dir.path().join("s");
            let [path, limit] = [socket.display().to_string(), format!("{mbits}Mbit/s")];
            let device = ["--sandbox", "on", "--socket", &path, "--port", "tap:zwrate"];
            let program =
                Program::net(&[&device[..], &["--tx-limit", &limit, "--rx-limit", &limit]].concat());
            program.wait_log("served by a confined process");
            ip(&["link", "set", "zwrate", "mtu", "65000"]);
            let (mut guest, peer) = (Guest::start(connect(&socket)), Peer::new("zwrate"));
            is_right("guest to tap", mbits, || frames_out(&mut guest, frame_len(mbits)));
            is_right("tap to guest", mbits, || frames_in(&mut guest, &peer, mbits));
            drop(guest);
            program.stop();
        }
    });
}

fn frames_out(guest: &mut Guest, len: usize) -> f64 {
    let shape = FrameShape { layout: Layout::Pages, indirect: true, capacity: len };
    let memory = guest.driver.memory().clone();
    let header = VirtioNetHdr::default();
    let frame = frames::frame(1, len);
    let pool = FramePool::filled(&memory, shape, 1, &header, &frame).expect("guest memory");
    let (tx, mut cursor) = (&mut guest.pairs[0].tx, 0);
    let rate = measure(|| {
        let passed = tx.reap().expect("a sound ring");
        tx.submit_cycle(&pool, &mut cursor, usize::MAX);
        tx.publish().expect("published");
        passed * len
    });
    assert!(tx.drain(PATIENCE).expect("a sound ring"), "all come back");
    rate
}

fn frames_in(guest: &mut Guest, peer: &Peer, mbits: u64) -> f64 {
    let frame = frames::frame(1, frame_len(mbits));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetAtEnd(&done);
        scope.spawn(|| {
            // Twice as many as may pass.
            let a_second = 2.0 * 1e6 * mbits as f64 / (8 * frame.len()) as f64;
            let (begin, mut sent) = (Instant::now(), 0);
            while !done.load(Ordering::Relaxed) {
                let due = (begin.elapsed().as_secs_f64() * a_second) as u64;
                (sent..due).for_each(|_| drop(peer.send_with(&[0; 10], &frame)));
                sent = due;
                std::thread::sleep(PAUSE);
            }
        });
        let rx = &mut guest.pairs[0].rx;
        measure(|| {
            let mut bytes = 0;
            rx.harvest(usize::MAX, |frame| bytes += frame.len).expect("a sound ring");
            rx.publish().expect("published");
            bytes
        })
    })
}

#[test]
fn bytes_of_connections_pass_at_the_rate_of_the_limit() {
    for mbits in rates("1,100") {
        let dir = tempfile::tempdir().expect("a directory");
        let [socket, uds] = ["s", "u"].map(|name| dir.path().join(name));
        let [socket_path, uds_path] = [&socket, &uds].map(|path| path.display().to_string());
        let limit = format!("{mbits}Mbit/s");
        let device = ["--sandbox", "on", "--cid", "3", "--socket", &socket_path, "--uds", &uds_path];
        let limits = ["--tx-limit", &limit, "--rx-limit", &limit];
        let program = Program::vsock(&[&device[..], &limits].concat(), Restrict::default());
        program.wait_log("served by a confined process");
        is_right("guest to program", mbits, || bytes_out(&socket, &uds));
        is_right("program to guest", mbits, || bytes_in(&socket, &uds));
        program.stop();
    }
}

static CHUNK: [u8; 64 << 10] = [7; 64 << 10];

fn bytes_out(socket: &Path, uds: &Path) -> f64 {
    let mut guest = vsock::Guest::start(socket);
    let (conn, mut stream) = guest.open(uds, 1000);
    std::thread::scope(|scope| {
        let mut buffer = CHUNK;
        let program = scope.spawn(move || measure(|| stream.read(&mut buffer).expect("the guest's bytes")));
        while !program.is_finished() {
            // The program leaves first.
            if !guest.stack.send(conn, &CHUNK).is_ok_and(|sent| sent > 0) {
                guest.turn();
            }
        }
        program.join().expect("a rate")
    })
}

fn bytes_in(socket: &Path, uds: &Path) -> f64 {
    let mut guest = vsock::Guest::start(socket);
    let (conn, mut stream) = guest.open(uds, 1001);
    std::thread::scope(|scope| {
        scope.spawn(move || while stream.write(&CHUNK).is_ok() {});
        let mut bytes = Vec::new();
        let rate = measure(|| {
            bytes.clear();
            guest.stack.turn(Duration::ZERO).expect("a sound ring");
            guest.stack.recv(conn, &mut bytes).expect("a connection");
            bytes.len()
        });
        drop(guest);
        rate
    })
}
