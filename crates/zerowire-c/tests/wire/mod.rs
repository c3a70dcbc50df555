//! A pair of interfaces in a network namespace of the test's, and what comes out of it.
#![allow(dead_code, reason = "shared with other crates' tests")]

#[path = "../../../zerowire-virtio/tests/common/frames.rs"]
pub mod frames;
#[path = "../../../zerowire-virtio/tests/common/netns.rs"]
pub mod netns;
#[path = "../../../zerowire-virtio/tests/common/peer.rs"]
pub mod peer;
#[path = "../../../zerowire-virtio/tests/common/veth.rs"]
pub mod veth;

use std::time::{Duration, Instant};

pub use netns::in_netns;
pub use peer::Peer;

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
