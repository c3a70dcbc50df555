use super::testing::is_left_out;
use super::*;

#[test]
fn core_dumps_leave_out_mappings_of_every_kind() {
    const LEN: usize = 2 << 20;
    let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, LEN as u64).expect("its length");
    assert!(is_left_out(Mapping::shared(&file, 0, LEN).expect("a mapping").as_ptr()));
    assert!(is_left_out(Mapping::private(LEN).expect("a mapping").as_ptr()));
    assert!(!is_left_out(std::ptr::from_ref(&file).cast()), "other memory is dumped");
}

#[test]
fn ranges_and_words_outside_are_refused() {
    let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, 8192).expect("its length");
    let mut mapping = Mapping::reserve(8192).expect("a mapping");
    for (at, len, offset, errno) in [
        (4096, 8192, 0, io::Errno::INVAL),
        (usize::MAX, 4096, 0, io::Errno::INVAL),
        (0, 4096, 1 << 63, io::Errno::OVERFLOW),
    ] {
        let placed = mapping.place(at, len, (&file, offset), READ_WRITE, MapFlags::empty());
        assert_eq!(placed, Err(errno), "{at} {len} {offset}");
    }
    mapping.place(0, 8192, (&file, 0), READ_WRITE, MapFlags::empty()).expect("placed");
    assert!(is_left_out(mapping.as_ptr()) && is_left_out(mapping.as_ptr().wrapping_add(8191)));
    mapping.word(8188).store(7, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(mapping.find_word(8188).map(|w| w.load(std::sync::atomic::Ordering::Relaxed)), Some(7));
    for at in [2, 8190, 8192, usize::MAX - 3] {
        assert!(mapping.find_word(at).is_none(), "{at}");
    }
    for (at, len, inside) in [(8188, 4, 4), (8188, 9, 4), (8192, 1, 0), (usize::MAX, usize::MAX, 0)] {
        let slice = mapping.volatile(at, len);
        assert_eq!((slice.len(), slice.get(0)), (inside, Some(7).filter(|_| inside > 0)), "{len} at {at}");
    }
}

#[test]
fn a_file_without_content_takes_the_place_where_private_memory_is_refused() {
    const PAGE: usize = 4096;
    let mapping = Mapping::private(64 * PAGE).expect("a mapping");
    let at = |page: usize| mapping.as_ptr().wrapping_add(page * PAGE);
    for page in 0..64 {
        // SAFETY: within the mapping.
        unsafe { at(page).write_volatile(1) };
    }
    // SAFETY: pages of this mapping, which has no other user.
    unsafe { replace_by_file(at(4), 60 * PAGE) }.expect("a file");
    for page in 4..64 {
        // SAFETY: within the mapping.
        unsafe {
            assert_eq!(at(page).read_volatile(), 0, "{page}");
            at(page).write_volatile(2);
        }
    }
    // SAFETY: within the mapping.
    assert_eq!(unsafe { (at(3).read_volatile(), at(63).read_volatile()) }, (1, 2));
}
