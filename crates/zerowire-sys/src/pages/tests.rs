use super::*;
use crate::map::{Mapping, READ_WRITE};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::MapFlags;

/// Bytes of the mapping at this address that are locked (`Locked:` of /proc/self/smaps).
fn locked(at: usize) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("it is there");
    let begin = format!("{at:x}-");
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&begin));
    let line = lines.find_map(|line| line.strip_prefix("Locked:")).expect("a mapping");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Locks the pages of a range, those that are there and those that come.
fn keep(range: Range<usize>) {
    let flags = libc::MLOCK_ONFAULT as libc::c_uint;
    // SAFETY: locking changes no bytes; the kernel checks the range.
    let _ = unsafe { libc::mlock2(range.start as *const libc::c_void, range.len(), flags) };
}

#[test]
fn pages_of_a_mapping_that_is_locked_are_there_and_stay() {
    const LEN: usize = 16 * PAGE;
    let file = memfd_create("ram", MemfdFlags::CLOEXEC).expect("a file");
    ftruncate(&file, LEN as u64).expect("its length");
    let mapping = Mapping::shared(&file, 0, LEN).expect("a mapping");
    let start = mapping.as_ptr().addr();
    assert_eq!(absent(start..start + LEN), Some(LEN as u64), "none of them has come");
    let mut mapping = Mapping::private(LEN).expect("a mapping");
    mapping.place(0, LEN, (&file, 0), READ_WRITE, MapFlags::LOCKED).expect("placed");
    let start = mapping.as_ptr().addr();
    assert_eq!(absent(start..start + LEN), Some(0));
    assert_eq!(locked(start), LEN as u64);
}

/// While the kernel moves a page, its entry in the page table names none.
#[test]
fn pages_that_the_kernel_moves_are_not_absent() {
    const LEN: usize = 16384 * PAGE;
    let [kept, holes] = [0, 1].map(|_| memfd_create("ram", MemfdFlags::CLOEXEC).expect("a file"));
    let [kept, holed] = [&kept, &holes].map(|file| {
        ftruncate(file, LEN as u64).expect("its length");
        Mapping::shared(file, 0, LEN).expect("a mapping")
    });
    // Pages of the two files lie side by side, so that gaps are left between those of one.
    for i in 0..LEN / PAGE {
        for mapping in [&kept, &holed] {
            // SAFETY: within the mapping.
            unsafe { mapping.as_ptr().add(i * PAGE).write_volatile(1) };
        }
    }
    let start = kept.as_ptr().addr();
    keep(start..start + LEN);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&holes, flags, 0, LEN as u64).expect("punched");
    let compaction = std::thread::spawn(|| {
        for _ in 0..20 {
            // Without the right to do this nothing moves.
            let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
        }
    });
    let pagemap = File::open("/proc/self/pagemap").expect("it is there");
    while !compaction.is_finished() {
        assert_eq!(absent(start..start + LEN), Some(0));
        assert_eq!(read(&pagemap, start..start + LEN).expect("read"), 0);
    }
    compaction.join().expect("it ends");
}

#[test]
fn pages_that_were_discarded_stay_absent_however_often_they_are_written_elsewhere() {
    const LEN: usize = 64 * PAGE;
    let file = memfd_create("ram", MemfdFlags::CLOEXEC).expect("a file");
    ftruncate(&file, LEN as u64).expect("its length");
    let [watched, used] = [0, 1].map(|_| Mapping::shared(&file, 0, LEN).expect("a mapping"));
    let start = watched.as_ptr().addr();
    let range = start..start + LEN;
    let pagemap = File::open("/proc/self/pagemap").expect("it is there");
    let both = || {
        let bytes = absent(range.clone()).expect("an answer");
        assert_eq!(read(&pagemap, range.clone()).expect("read"), bytes);
        bytes
    };
    assert_eq!(both(), LEN as u64, "nothing was touched yet");
    for i in 0..64 {
        // SAFETY: within the mapping.
        unsafe { watched.as_ptr().add(i * PAGE).write_volatile(1) };
    }
    keep(range.clone());
    assert_eq!(both(), 0);
    for at in [3, 5, 6] {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, flags, (at * PAGE) as u64, PAGE as u64).expect("punched");
    }
    assert_eq!(both(), 3 * PAGE as u64);
    for i in 0..64 {
        // SAFETY: within the mapping.
        unsafe { used.as_ptr().add(i * PAGE).write_volatile(2) };
    }
    assert_eq!(both(), 3 * PAGE as u64, "other pages are there now");
}
