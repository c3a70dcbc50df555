//! A guest that posts few buffers of a large ring: the device does not wait for more than come. The
//! device runs without its thread, and the guest notifies it where the event index asks for that.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};

use crate::support::harness::one_guest;
use zerowire_vsock::packet::{Header, Kind, Op};
use zerowire_vsock::testing::{Flow, Guest, Harness, Layout, RING_SIZE};
use zerowire_vsock::{RX_QUEUE, VsockLimits};

const PORT: u32 = 7;
/// What the device waits for at first.
const QUARTER: usize = RING_SIZE as usize / 4;
const FEW: usize = 4;
const ROUNDS: usize = 20;

struct Scene {
    harness: Harness,
    guest: Guest,
    stream: UnixStream,
    _dir: tempfile::TempDir,
}

impl Scene {
    /// A connection whose host program has more to send than the guest has posted buffers for. The
    /// guest has all the credit it needs, and all its buffers are used.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
        let listener = UnixListener::bind(dir.path().join(format!("3_{PORT}"))).expect("a socket");
        let request = Flow::new(3, 100, PORT, Kind::Stream).header(Op::Request, 0);
        let request = Header { buf_alloc: 64 << 20, ..request };
        assert!(guest.send(&request.to_bytes(), 0, Layout(0)), "room");
        harness.rest();
        let (stream, _) = listener.accept().expect("the guest's connection");
        stream.set_nonblocking(true).expect("non-blocking");
        let mut scene = Self { harness, guest, stream, _dir: dir };
        scene.supply();
        scene.harness.rest();
        while scene.take() > 0 {
            scene.harness.rest();
        }
        scene.guest.asked_only = true;
        scene
    }

    /// The host program sends as much as its socket takes.
    fn supply(&mut self) {
        while self.stream.write(&[7; 4096]).is_ok() {}
    }

    /// How many packets came.
    fn take(&mut self) -> usize {
        let mut packets = 0;
        self.guest.reap(RX_QUEUE, |_| packets += 1);
        packets
    }

    /// The guest posts `buffers` buffers. Returns how often it notifies the device.
    fn post(&mut self, buffers: usize) -> u64 {
        self.supply();
        let before = self.guest.kicks(RX_QUEUE);
        for _ in 0..buffers {
            assert!(self.guest.post(4096, Layout(0)), "a chain is free");
        }
        self.guest.kicks(RX_QUEUE) - before
    }

    /// How often the device looks before `packets` packets have come.
    fn looks(&mut self, packets: usize) -> usize {
        let mut came = 0;
        for look in 1..1000 {
            self.harness.turn();
            came += self.take();
            if came == packets {
                return look;
            }
        }
        panic!("{came} of {packets} packets");
    }

    /// The guest posts few buffers until the device has waited for more. At first it does not: it
    /// was idle, when any buffer will do, and the first one brought a notification.
    fn learn(&mut self) {
        for _ in 0..5 {
            self.post(FEW);
            if self.looks(FEW) > 10 {
                return;
            }
        }
        panic!("the device did not wait");
    }

    /// The device has used `packets` buffers, and sleeps: until the guest posts more, or time
    /// passes.
    fn sleep(&mut self, packets: usize) {
        self.harness.rest();
        assert_eq!(self.take(), packets);
    }
}

/// While it is awake, the device takes the guest's few buffers as soon as it sees them.
#[test]
fn few_buffers_are_taken_at_the_next_look() {
    let mut s = Scene::new();
    s.learn();
    for round in 0..ROUNDS {
        s.post(FEW);
        assert_eq!(s.looks(FEW), 1, "round {round}");
    }
}

/// While it sleeps, half of these buffers wake it: the guest gets the other half ready meanwhile.
#[test]
fn a_device_that_sleeps_is_woken_by_half_of_what_comes() {
    let mut s = Scene::new();
    s.learn();
    s.sleep(0);
    for round in 0..ROUNDS {
        assert_eq!(s.post(FEW / 2 - 1), 0, "round {round}");
        assert_eq!(s.post(FEW / 2 + 1), 1, "round {round}");
        s.sleep(FEW);
    }
}

/// A guest that posts a good part of its ring notifies the device once for a quarter of it. It also
/// does so after it has stood still for a while.
#[test]
fn a_guest_with_many_buffers_notifies_as_seldom_as_it_can() {
    let mut s = Scene::new();
    s.sleep(0);
    // After this pause any buffer will do, and then all of them come.
    assert_eq!(s.post(QUARTER), 1);
    s.sleep(QUARTER);
    for round in 0..ROUNDS {
        assert_eq!(s.post(QUARTER - 1), 0, "round {round}");
        assert_eq!(s.post(1), 1, "round {round}");
        s.sleep(QUARTER);
    }
}

/// One that posts more again is waited for again.
#[test]
fn a_guest_that_posts_more_again_is_waited_for_again() {
    let mut s = Scene::new();
    s.learn();
    s.sleep(0);
    s.post(QUARTER);
    s.sleep(QUARTER);
    for round in 0..ROUNDS {
        assert_eq!(s.post(QUARTER / 2 - 1), 0, "round {round}");
        assert_eq!(s.post(QUARTER / 2 + 1), 1, "round {round}");
        s.sleep(QUARTER);
    }
}
