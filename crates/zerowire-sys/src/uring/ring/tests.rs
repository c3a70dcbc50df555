use super::*;
use io_uring::opcode;
use std::time::Duration;

#[test]
fn kernels_with_broken_bundles() {
    for release in ["6.13.0", "6.14.0-37-generic", "6.15-rc1", "6.15.11"] {
        assert!(has_broken_bundles(release), "{release}");
    }
    for release in ["6.12.57", "6.16.0", "6.18.44-fc", "7.0", "5.13.0", "6.1.15", "", "x"] {
        assert!(!has_broken_bundles(release), "{release}");
    }
}

#[test]
fn a_wait_without_end_waits() {
    let mut ring = SendRing::new(4, 8, Threads::Any).expect("a ring");
    for gathers in [false, ring.has_gathering()] {
        let time = io_uring::types::Timespec::new().nsec(20_000_000);
        let entry = opcode::Timeout::new(&time).build().user_data(7);
        // SAFETY: the time lives until the entry's completion, which is waited for.
        assert!(unsafe { ring.push(&entry) });
        let timeout = Some(Duration::MAX);
        match gathers {
            true => ring.enter(4, Patience { timeout, gather: Duration::from_micros(50) }),
            false => ring.enter(1, timeout),
        }
        .expect("entered");
        assert!(ring.pop().is_some_and(|c| c.user_data == 7 && c.result == -libc::ETIME));
    }
}
