use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerowire::ledger::Counters;
use zerowire_capture::{Capture, CaptureOptions, CaptureTarget, LINKTYPE_ETHERNET};
use zerowire_testkit::wait_until;
use zerowire_vhost::ring::inflight::testing::Driver;

use super::{Receive, ReceiveContext, ReceiveSetup};
use crate::Policy;
use crate::capture::FrameCapture;
use crate::io::PortIo;
use crate::port::tap::TapInlet;

/// Bytes of a virtio-net header.
const HEADER: usize = 12;
/// The device writes to the buffer (virtio 1.3 §2.7.5).
const DESC_WRITE: u16 = 2;

/// Makes a buffer of 2048 bytes available.
fn post(driver: &mut Driver, head: u16, flags: u16) {
    driver.describe(head, 2048);
    driver.put(16 * u64::from(head) + 12, flags);
    driver.add(0);
}

/// A wire that keeps frames as they are.
fn wire() -> (PortIo, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    (PortIo::new(near), far)
}

/// Nobody publishes anything behind the turn in which the ring breaks.
#[test]
fn frames_before_a_broken_chain_are_in_the_capture() {
    let dir = tempfile::tempdir().expect("a folder");
    let target = CaptureTarget::File(dir.path().join("capture"));
    let options = CaptureOptions::new(target);
    let capture = Capture::start(&options, "a test").unwrap_or_else(|e| panic!("{e}"));
    let interface = capture.interface(LINKTYPE_ETHERNET, "vm", "").expect("any name");
    let mut driver = Driver::new(0);
    let (ring, _) = driver.device();
    let memory = driver.memory.clone();
    let setup = ReceiveSetup { mergeable: false, header_len: HEADER, clears_flags: false };
    let inlet = TapInlet::new(Policy::default(), 1500, setup).expect("memory");
    let mut side = Receive::new(ring, inlet, setup);
    side.set_capture(Some(FrameCapture::new(&interface)));
    let (mut io, far) = wire();
    let counters = Counters::default();
    let cx = ReceiveContext { memory: &memory, counters: &counters };
    let send = || rustix::io::write(&far, &[0; HEADER + 1500]).expect("a frame on the wire");
    // Frames that fill their turn make the next one larger.
    for head in 0..4 {
        post(&mut driver, head, DESC_WRITE);
        send();
    }
    while counters.snapshot().frames < 4 {
        side.run(&mut io, &cx).expect("a sound ring");
    }
    post(&mut driver, 4, DESC_WRITE);
    post(&mut driver, 5, 0);
    send();
    side.run(&mut io, &cx).expect_err("a buffer that the device may not write to");
    assert_eq!(counters.snapshot().frames, 5);
    wait_until("all are in the capture", || interface.stats().captured == 5);
}
