//! Shared by the tests: the program as a child, a guest, the host's side of a tap.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

#[path = "../../../zerowire-virtio/tests/common/frames.rs"]
pub mod frames;
pub mod http;
#[path = "../../../zerowire-virtio/tests/common/netns.rs"]
pub mod netns;
#[path = "../../../zerowire-virtio/tests/common/peer.rs"]
pub mod peer;
pub mod pipe;
pub mod program;
pub mod tap;

use std::time::{Duration, Instant};

use zerowire_guest::net::{FrameShape, Layout, NetDriver, NetOptions, QueuePair, VirtioNetHdr};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};

pub use netns::{in_netns, interface};
pub use peer::Peer;
pub use program::{HANDED_FD, Program, Restrict, connect};

/// How long anything may take before a test gives up. No test asserts how long anything took.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `done`; fails with `what` where that takes too long.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A guest with one queue pair.
pub struct Guest {
    /// The driver.
    pub driver: NetDriver<VhostUser>,
    /// Its queues.
    pub pairs: Vec<QueuePair>,
}

impl Guest {
    /// Starts a guest of 32 MiB on a connection.
    pub fn start(transport: VhostUser) -> Self {
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
        let shape = FrameShape { layout: Layout::Pages, indirect: true, capacity: 20_000 };
        let options = NetOptions { tx: shape, tx_slots: 256, ..NetOptions::default() };
        let (driver, pairs) =
            NetDriver::start(transport, &memory, &options).unwrap_or_else(|e| panic!("{e}"));
        Self { driver, pairs }
    }

    /// Sends a frame and waits until it is given back.
    pub fn send(&mut self, frame: &[u8]) {
        let tx = &mut self.pairs[0].tx;
        assert!(tx.send(&VirtioNetHdr::default(), frame).expect("a frame that fits"));
        assert!(tx.drain(PATIENCE).expect("a sound ring"));
    }

    /// The next numbered frame, which must come; what others send is passed over.
    pub fn expect_numbered(&mut self) -> Vec<u8> {
        loop {
            let frame = self.expect();
            if frame[12..14] == frames::EXPERIMENT {
                return frame;
            }
        }
    }

    /// The next frame, which must come.
    pub fn expect(&mut self) -> Vec<u8> {
        self.pairs[0].rx.recv(PATIENCE).expect("a sound ring").expect("a frame").1
    }

    /// Short and long frames each way.
    pub fn ping(&mut self, peer: &mut Peer) {
        for (n, len) in [(1, 60), (2, 1514), (3, 20_000)] {
            let out = frames::frame(n, len);
            self.send(&out);
            assert_eq!(peer.expect().bytes, out, "guest to host");
            let back = frames::frame(n + 100, len.min(1514));
            peer.send(&back);
            assert_eq!(self.expect_numbered(), back, "host to guest");
        }
    }
}
