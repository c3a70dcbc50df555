use crate::{GuestAddr, GuestError, GuestMemory};

const GAP: GuestAddr = GuestAddr(1 << 32);

fn memory() -> GuestMemory {
    GuestMemory::new(&[(GuestAddr(0), 16 << 12), (GAP, 16 << 12)]).unwrap()
}

#[test]
fn regions_share_a_file_at_their_offsets() {
    let memory = memory();
    let regions = memory.regions();
    assert_eq!(regions[0].file_offset(), 0);
    assert_eq!(regions[1].file_offset(), 16 << 12);
    memory.at(GAP, 5).unwrap().write(0, b"above");
    let mut seen = [0; 5];
    rustix::io::pread(regions[0].file(), &mut seen, 16 << 12).unwrap();
    assert_eq!(&seen, b"above");
}

#[test]
fn ranges_outside_or_across_regions_are_refused() {
    let memory = memory();
    for (addr, len) in [(16 << 12, 1), ((16 << 12) - 1, 2), (GAP.0 - 1, 2), (u64::MAX, 2)] {
        assert!(matches!(memory.at(GuestAddr(addr), len), Err(GuestError::NoSuchMemory { .. })));
    }
    assert!(memory.at(GuestAddr((16 << 12) - 1), 1).is_ok());
}

#[test]
fn allocations_come_back_and_merge() {
    let memory = memory();
    let whole = memory.regions()[0].free_ranges();
    {
        let a = memory.allocate(100, 64).unwrap();
        let b = memory.allocate(5000, 4096).unwrap();
        let part = a.part(50, 50);
        drop(a);
        assert_eq!(part.guest_addr(), GuestAddr(50));
        assert_eq!(b.guest_addr().0 % 4096, 0);
        assert_ne!(memory.regions()[0].free_ranges(), whole);
    }
    assert_eq!(memory.regions()[0].free_ranges(), whole);
    assert!(matches!(memory.allocate(17 << 12, 1), Err(GuestError::OutOfMemory { .. })));
    let high = memory.only(GAP).unwrap().allocate(16 << 12, 1).unwrap();
    assert_eq!(high.guest_addr(), GAP);
}

#[test]
fn regions_come_and_go() {
    let memory = memory();
    let plugged = GuestAddr(1 << 20);
    for (addr, len) in [(GuestAddr(0), 4096), (GuestAddr(15 << 12), 8192), (plugged, 100)] {
        assert!(memory.add_region(addr, len).is_err(), "{addr}");
    }
    memory.add_region(plugged, 8192).unwrap();
    let slice = memory.only(plugged).unwrap().allocate(8192, 1).unwrap();
    memory.remove_region(plugged).unwrap();
    assert!(memory.at(plugged, 1).is_err());
    slice.write(8191, &[1]);
    assert!(memory.remove_region(plugged).is_err());
}

#[test]
#[should_panic(expected = "guest access of 2 bytes at 99")]
fn access_past_the_end_panics() {
    memory().allocate(100, 4).unwrap().write(99, &[1, 2]);
}
