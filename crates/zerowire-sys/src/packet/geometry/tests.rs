use super::*;
use proptest::prelude::*;

/// What `packet_set_ring` checks.
fn accepted(g: &Geometry, data_bytes: usize, page: usize) {
    assert!(g.block_bytes.is_multiple_of(page) && g.slot_bytes.is_multiple_of(ALIGN), "{g:?}");
    assert_eq!(g.block_bytes / g.slot_bytes, g.slots_per_block, "{g:?}");
    assert!(g.slots.is_multiple_of(g.slots_per_block), "{g:?}");
    assert!(g.data_bytes() >= data_bytes, "{g:?}");
    let last = g.offset(g.slots - 1) + g.slot_bytes;
    assert!(last <= g.total_bytes() && g.total_bytes() <= MAX_RING_BYTES, "{g:?}");
}

proptest! {
    #[test]
    fn the_kernel_accepts_every_geometry(slots in 1usize..5000, data in 14usize..2100) {
        for (version, page) in [(Version::V3, 4096), (Version::V2, 4096), (Version::V3, 65_536)] {
            accepted(&Geometry::with_page(slots, data, version, page).unwrap(), data, page);
        }
    }

    #[test]
    fn large_slots_are_whole_pages(slots in 1usize..300, data in 4096usize..=65_560) {
        let page = 4096;
        let g = Geometry::with_page(slots, data, Version::V3, page).unwrap();
        accepted(&g, data, page);
        prop_assert!(g.slot_bytes.is_multiple_of(page));
    }
}

#[test]
fn usual_slots_share_pages() {
    let g = Geometry::with_page(256, 1518, Version::V3, 4096).unwrap();
    assert_eq!((g.slot_bytes, g.slots_per_block, g.block_bytes), (2048, 128, 256 << 10));
    // A number without divisors is kept exactly, too.
    let g = Geometry::with_page(1009, 1518, Version::V3, 4096).unwrap();
    assert_eq!((g.slots, g.slots_per_block, g.block_bytes), (1009, 1, 4096));
}

#[test]
fn limits_are_named() {
    let text = |r: Result<Geometry, GeometryError>| r.unwrap_err().to_string();
    assert!(text(Geometry::new(0, 1518, Version::V3)).contains("0 slots"));
    assert!(text(Geometry::new(MAX_SLOTS + 1, 60, Version::V3)).contains("524289 slots"));
    let huge = text(Geometry::with_page(MAX_SLOTS, 65_560, Version::V3, 4096));
    assert!(huge.contains("69632 bytes") && huge.contains("fewer slots"), "{huge}");
}
