//! What front ends and guests do that makes lines in the log.

use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::{GuestAddr, GuestMemory, Transport, VhostUser, features};

use super::PATIENCE;

/// Bytes of a guest's memory that stay in a file which is truncated.
const KEPT: u64 = 1 << 20;

/// Asks for what the back end refuses, again and again on one connection.
pub fn repeat_an_error(front: &mut VhostUser, times: usize) {
    for _ in 0..times {
        front.set_mtu(67).expect_err("an MTU that is too small");
    }
}

/// Has the back end read a frame that the file behind the guest's memory has lost.
pub fn send_what_is_lost(front: &mut VhostUser) {
    let memory = GuestMemory::new(&[(GuestAddr(0), 4 << 20)]).expect("guest memory");
    front.negotiate(features::VERSION_1).expect("features");
    front.share_memory(&memory).expect("shared memory");
    let mut queue = RawQueue::start(&memory, front, 1, 16).expect("a queue");
    rustix::fs::ftruncate(memory.regions()[0].file(), KEPT).expect("truncated");
    queue.write_desc(0, RawDesc { addr: KEPT, len: 72, flags: 0, next: 0 });
    queue.offer(0);
    queue.kick().expect("a kick");
    assert!(queue.wait_used(1, PATIENCE), "the chain comes back");
}
