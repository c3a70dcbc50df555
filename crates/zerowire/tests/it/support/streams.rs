//! Streams of known bytes, and a reader that checks each.

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use zerowire::recv::{Arrival, ConnectionId, Receiver, RecvBackend, RecvOptions, What};
pub use zerowire_testkit::net::tcp_pair;

/// Long enough for any machine; reached only when something hangs.
pub const LONG: Duration = Duration::from_secs(60);
/// The back ends that run everywhere.
pub const ALL: [RecvBackend; 2] = [RecvBackend::Multishot, RecvBackend::Plain];

/// Bytes `8 * index` to `8 * index + 7` of the stream `seed`.
fn word(seed: usize, index: usize) -> [u8; 8] {
    let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32 ^ (seed as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
}

/// Bytes of the stream `seed`: any shift, gap or repetition shows.
pub fn pattern(seed: usize, from: usize, len: usize) -> Vec<u8> {
    let (skipped, mut index) = (from % 8, from / 8);
    let mut bytes = Vec::with_capacity(skipped + len + 8);
    while bytes.len() < skipped + len {
        bytes.extend_from_slice(&word(seed, index));
        index += 1;
    }
    bytes.truncate(skipped + len);
    bytes.drain(..skipped);
    bytes
}

/// Writes the first `len` bytes of the stream `seed`, in writes of `step`.
pub fn write_stream(to: &mut TcpStream, seed: usize, len: usize, step: usize) {
    let mut at = 0;
    while at < len {
        let n = step.min(len - at);
        to.write_all(&pattern(seed, at, n)).unwrap();
        at += n;
    }
}

/// Writes until the socket takes no more; returns the bytes.
pub fn stuff(to: &mut TcpStream, seed: usize) -> usize {
    to.set_nonblocking(true).unwrap();
    let (mut at, mut quiet) = (0, 0);
    while quiet < 20 {
        match to.write(&pattern(seed, at, 50_000)) {
            Ok(n) => (at, quiet) = (at + n, 0),
            Err(e) => {
                assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
                quiet += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
    to.set_nonblocking(false).unwrap();
    at
}

pub fn receiver(backend: RecvBackend, change: impl FnOnce(&mut RecvOptions)) -> Receiver {
    let mut options = RecvOptions::default().backend(backend.clone());
    change(&mut options);
    let receiver = Receiver::new(options).unwrap();
    let name = match backend {
        RecvBackend::Multishot => "multishot",
        _ => "plain",
    };
    assert!(receiver.path().starts_with(name), "{}", receiver.path());
    receiver
}

/// What has come of one connection.
#[derive(Debug, Default)]
pub struct Seen {
    pub seed: usize,
    pub bytes: usize,
    pub ended: bool,
    pub failed: Option<i32>,
}

/// Reads and checks.
#[derive(Debug, Default)]
pub struct Reader {
    pub seen: HashMap<ConnectionId, Seen>,
    pub batch: Vec<Arrival>,
}

impl Reader {
    pub fn expect(&mut self, id: ConnectionId, seed: usize) {
        self.seen.insert(id, Seen { seed, ..Seen::default() });
    }

    /// Checks the batch and leaves it for the caller to drop.
    pub fn check(&mut self, from: usize) {
        for arrival in &self.batch[from..] {
            let seen = self.seen.get_mut(&arrival.connection).expect("a known connection");
            assert!(!seen.ended && seen.failed.is_none(), "{arrival:?} after the end");
            match &arrival.what {
                What::Data(lease) => {
                    let good = **lease == pattern(seen.seed, seen.bytes, lease.len());
                    assert!(good, "stream {} differs after byte {}", seen.seed, seen.bytes);
                    seen.bytes += lease.len();
                }
                What::Accepted(_) => panic!("{arrival:?} was not expected"),
                What::End => seen.ended = true,
                What::Failed(e) => seen.failed = Some(e.raw_os_error().unwrap_or(-1)),
            }
        }
    }

    /// Receives one batch, checks it and gives all of it back; returns the number of arrivals.
    pub fn turn(&mut self, receiver: &mut Receiver, timeout: Duration) -> usize {
        self.batch.clear();
        let count = receiver.recv(&mut self.batch, Some(timeout)).unwrap();
        self.check(0);
        self.batch.clear();
        count
    }

    /// Until `done`.
    pub fn until(&mut self, receiver: &mut Receiver, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + LONG;
        while !done(self) {
            self.turn(receiver, Duration::from_millis(200));
            assert!(Instant::now() < end, "hangs: {:?} {:?}", receiver.events(), self.seen.values());
        }
    }

    pub fn all_ended(&self) -> bool {
        self.seen.values().all(|s| s.ended)
    }

    pub fn bytes(&self) -> usize {
        self.seen.values().map(|s| s.bytes).sum()
    }
}
