use super::*;

#[test]
fn the_usual_mtu_has_the_measured_figures() {
    let g = Geometry::for_mtu(1500);
    assert_eq!((g.frame_bytes, g.headroom_bytes()), (1518, 2322));
    // A = G − 2566, where the frame begins at G + 12.
    assert_eq!(g.chunk_for(100_012), Some(100_000 - 2566));
}

#[test]
fn a_chunk_ends_with_the_longest_frame() {
    for mtu in [68, 576, 1500, MAX_MTU - 1, MAX_MTU, 9000, 65_535] {
        let g = Geometry::for_mtu(mtu);
        let frame = 1 << 20;
        let chunk = g.chunk_for(frame).unwrap_or_default();
        assert_eq!(chunk + u64::from(CHUNK_BYTES), frame + u64::from(g.frame_bytes), "MTU {mtu}");
        assert_eq!(g.frame_offset(), u64::from(KERNEL_HEADROOM_BYTES + g.headroom_bytes()));
        assert!(g.headroom_bytes() < MAX_FRAME_BYTES);
    }
    assert_eq!(Geometry::for_mtu(65_535), Geometry::for_mtu(MAX_MTU));
}

#[test]
fn a_driver_may_write_a_little_more() {
    let g = Geometry::for_zero_copy(1500);
    // With the header 1548 bytes, more than a Linux guest's smallest buffers have.
    assert_eq!((g.frame_bytes, g.headroom_bytes(), g.zero_copy), (1536, 2304, true));
    for mtu in [68, 576, 1500, MAX_MTU, 65_535] {
        let g = Geometry::for_zero_copy(mtu);
        assert!(g.frame_bytes >= Geometry::for_mtu(mtu).frame_bytes);
        assert!(g.frame_bytes.is_multiple_of(ZERO_COPY_STEP_BYTES));
    }
}

#[test]
fn the_padding_is_long_enough() {
    let g = Geometry::for_mtu(68);
    assert!(g.chunk_for(PADDING_BYTES as u64).is_some());
    assert!(PADDING_BYTES > 2 * usize::from(zerowire_sys::xdp::address::MAX_COOKIE) + 1);
    assert_eq!(g.chunk_for(0), None);
}
