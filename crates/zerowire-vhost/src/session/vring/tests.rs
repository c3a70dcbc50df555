use super::*;

fn text(refused: Result<impl Sized, SessionError>) -> String {
    refused.err().expect("it is refused").to_string()
}

fn address(desc: u64, flags: u32) -> VringAddr {
    VringAddr { index: 0, flags, desc, used: 0x3000, avail: 0x2000, log: 0x5000 }
}

#[test]
fn a_ring_that_runs_stays_as_it_is() {
    let mut ring = Vring::default();
    for size in [0, 3, 65_536] {
        assert!(text(ring.set_size(5, size)).contains("queue 5"), "{size}");
    }
    ring.set_size(5, 256).expect("a size");
    ring.set_base(5, 65_535).expect("a base");
    assert!(text(ring.set_base(5, 65_536)).contains("more than 65535"));
    assert_eq!(ring.set_addresses(&address(0x1000, 0)).expect("addresses"), None);
    ring.started = true;
    ring.set_size(5, 256).expect("the same");
    assert!(text(ring.set_size(5, 128)).contains("from 256 to 128 while it runs"));
    assert!(text(ring.set_base(5, 0)).contains("while it runs"));
    assert!(text(ring.set_addresses(&address(0x1010, 0))).contains("while it runs"));
    // Another log flag does not count as a change.
    assert_eq!(ring.set_addresses(&address(0x1000, 1)).expect("addresses"), None);
    assert_eq!(ring.set_addresses(&address(0x1000, 0)).expect("addresses"), Some(0x5000));
    assert_eq!((ring.size, ring.base), (256, 65_535));
}
