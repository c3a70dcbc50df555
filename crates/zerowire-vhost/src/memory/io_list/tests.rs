use super::*;
use crate::memory::RegionConfig;

#[test]
fn what_the_memory_does_not_have_is_not_named() {
    const LEN: u64 = 8192;
    let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, LEN).expect("its length");
    let region = RegionConfig { guest_addr: 0, len: LEN, user_addr: 0, offset: 0, file };
    let memory = GuestMemory::new(vec![region]).expect("guest memory");
    let base = memory.regions()[0].ptr().as_ptr();
    let (mut entries, mut private) = (Vec::new(), [0; 3]);
    let named = |at: *mut u8, len, region| {
        let mut entries = Vec::new();
        let mut list = IoList::new(&mut entries);
        list.add(&memory, &Segment { ptr: at.into(), len, region });
        list.entries().iter().all(|e| e.iov_base == at.cast() && e.iov_len == len as usize)
    };
    for (at, len) in [(0, LEN as u32), (1, LEN as u32 - 1), (8191, 1), (8192, 0)] {
        assert!(named(base.wrapping_add(at), len, 0), "{len} at {at}");
        assert!(!named(base.wrapping_add(at), len, 1), "no such region");
    }
    for (at, len) in [(1, LEN as u32), (8191, 2), (8192, 1), (0, u32::MAX)] {
        assert!(!named(base.wrapping_add(at), len, 0), "{len} at {at}");
    }
    assert!(!named(base.wrapping_sub(1), 1, 0));
    let mut list = IoList::new(&mut entries);
    list.add_private(&mut private);
    list.add(&memory, &Segment { ptr: base.into(), len: 7, region: 0 });
    assert_eq!(list.entries().iter().map(|e| e.iov_len).collect::<Vec<_>>(), [3, 7]);
    list.truncate(1);
    assert!(list.len() == 1 && !list.is_empty());
    assert!(IoList::new(&mut entries).is_empty());
}
