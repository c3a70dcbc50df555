use super::*;

fn file(bytes: u64) -> OwnedFd {
    let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&file, bytes).expect("its size");
    file
}

fn bytes(file: &OwnedFd, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert_eq!(rustix::io::pread(file, &mut bytes, offset).expect("a read"), len);
    bytes
}

#[test]
fn bits_stand_for_pages() {
    let file = file(16);
    let log = DirtyLog::new(file.as_fd(), 0, 16).expect("a log");
    log.wrote(0, 1);
    log.wrote(PAGE_BYTES * 3 - 1, 2);
    log.wrote(PAGE_BYTES * 10, PAGE_BYTES);
    log.wrote(PAGE_BYTES * 23 + 4095, 0);
    log.wrote(PAGE_BYTES * 24, PAGE_BYTES * 17 + 1);
    let expected = [0b1101, 0b100, 0, 0xff, 0xff, 0b11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(bytes(&file, 0, 16), expected);
}

#[test]
fn nothing_is_set_beyond_the_log() {
    let file = file(3 * 4096);
    let log = DirtyLog::new(file.as_fd(), 4096, 2).expect("a log");
    assert_eq!(log.covers(), 16 * PAGE_BYTES);
    log.wrote(15 * PAGE_BYTES, 9 * PAGE_BYTES);
    log.wrote(16 * PAGE_BYTES, 1);
    log.wrote(u64::MAX, 1);
    log.wrote(u64::MAX - 5, u64::MAX);
    let mut expected = vec![0; 3 * 4096];
    expected[4097] = 0x80;
    assert_eq!(bytes(&file, 0, 3 * 4096), expected);
}

#[test]
fn the_offset_may_be_any() {
    let file = file(2 * 4096);
    let log = DirtyLog::new(file.as_fd(), 4095, 3).expect("a log");
    log.wrote(7 * PAGE_BYTES, 2 * PAGE_BYTES);
    assert_eq!(bytes(&file, 4094, 4), [0, 0x80, 1, 0]);
}

#[test]
fn logs_that_can_not_be_used_are_refused() {
    let file = file(4096);
    let refused = |offset, len| match DirtyLog::new(file.as_fd(), offset, len) {
        Ok(_) => panic!("{offset:#x} + {len:#x} was taken"),
        Err(e) => e.to_string(),
    };
    assert!(refused(0, 0).contains("empty"));
    assert!(refused(0, 4097).contains("needs 0x1001 bytes of its file, which has 0x1000"));
    assert!(refused(4096, 1).contains("needs 0x1001"));
    assert!(refused(1 << 40, 8).contains("which has 0x1000"));
    assert!(refused(u64::MAX, 8).contains("no range"));
    assert!(refused(8, u64::MAX).contains("no range"));
    assert!(refused(1 << 62, 1 << 62).contains("no range"));
    let log = DirtyLog::new(file.as_fd(), 0, 4096).expect("a log");
    assert!(log.check(1 << 27, String::new).is_ok());
    let text = log.check((1 << 27) + 1, || "guest memory".into()).expect_err("too small").to_string();
    assert!(text.contains("guest memory ends at 0x8000001: a log of 4097 bytes"), "{text}");
}

#[test]
fn no_log_covers_all_addresses() {
    let sparse = file(1 << 40);
    let log = DirtyLog::new(sparse.as_fd(), 0, 1 << 40).expect("a log");
    assert_eq!(log.covers(), 32 << 40);
    let text = log.check((32 << 40) + 1, || "guest memory".into()).expect_err("too high").to_string();
    assert!(text.contains("guest memory ends at guest address 0x200000000001"), "{text}");
    assert!(DirtyLog::private((32 << 40) + 1).is_err() && DirtyLog::private(u64::MAX).is_err());
    log.wrote(32 << 40, 4096);
    log.wrote((32 << 40) - 1, 1);
    assert_eq!(bytes(&sparse, (1 << 30) - 1, 2), [0x80, 0]);
}

#[test]
fn an_early_log_goes_over_to_the_front_ends() {
    let early = DirtyLog::private(100 * PAGE_BYTES).expect("a log");
    assert!(early.covers() >= 100 * PAGE_BYTES);
    early.wrote(9 * PAGE_BYTES, 1);
    early.wrote(99 * PAGE_BYTES, 1);
    let file = file(13);
    let log = DirtyLog::new(file.as_fd(), 0, 13).expect("a log");
    log.wrote(8 * PAGE_BYTES, 1);
    log.take_over(&early);
    assert_eq!(bytes(&file, 0, 13), [0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
}

/// Reads by this thread so far.
fn reads() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").expect("a kernel with TASK_IO_ACCOUNTING");
    let reads = io.lines().find_map(|line| line.strip_prefix("syscr: "));
    reads.and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn taking_over_a_sparse_log_fills_no_holes() {
    let file = file(64 << 20);
    let old = DirtyLog::new(file.as_fd(), 12_345, 32 << 20).expect("a log");
    for page in [0u64, 8 * 40_000, 8 * (20 << 20) + 3] {
        old.wrote(page * PAGE_BYTES, 1);
    }
    let blocks = || rustix::fs::fstat(&file).expect("its size").st_blocks;
    let before = (blocks(), reads());
    let new = DirtyLog::private(BYTE_COVERS * (32 << 20)).expect("a log");
    new.take_over(&old);
    assert!(reads() - before.1 < 520, "it is read in pieces of 64 KiB");
    assert_eq!(blocks(), before.0, "nothing was allocated by reading");
    let bits = |at: u64| new.byte(at).load(Ordering::Relaxed);
    assert_eq!([bits(0), bits(40_000), bits(20 << 20)], [1, 1, 8]);
    assert_eq!((0..32u64 << 20).filter(|at| bits(*at) != 0).count(), 3);
}

/// Bits on both sides of each place where one read or one piece ends.
#[test]
fn each_bit_of_a_log_goes_over_once_as_far_as_its_file_reaches() {
    const OFFSET: u64 = 12_345;
    const LEN: u64 = 3 * READ_BYTES as u64 + 4097;
    let file = file(OFFSET + LEN);
    let old = DirtyLog::new(file.as_fd(), OFFSET, LEN).expect("a log");
    let at = (0..LEN).filter(|at| (at + 1) % 4096 < 2 || (at + 1 + OFFSET) % 4096 < 2);
    let at: Vec<_> = at.collect();
    at.iter().for_each(|at| old.wrote(at * BYTE_COVERS, 1));
    for end in [LEN, 2 * READ_BYTES as u64 + 5000, 1, 0] {
        rustix::fs::ftruncate(&file, OFFSET + end).expect("its new size");
        let new = DirtyLog::private(LEN * BYTE_COVERS).expect("a log");
        new.take_over(&old);
        let set = (0..LEN).filter(|at| new.byte(*at).load(Ordering::Relaxed) != 0);
        assert!(set.eq(at.iter().copied().filter(|at| *at < end)), "{end} bytes");
    }
}

#[test]
fn a_log_that_is_truncated_ends_nothing() {
    let file = file(3 * 4096 + 5);
    let log = DirtyLog::new(file.as_fd(), 0, 3 * 4096 + 5).expect("a log");
    rustix::fs::ftruncate(&file, 0).expect("its new size");
    log.wrote(0, 1);
    log.wrote(3 * 4096 * BYTE_COVERS, 1);
    assert_eq!(rustix::fs::fstat(&file).expect("its size").st_size, 0);
}

#[test]
fn however_much_of_a_log_is_lost_the_process_has_few_mappings_more() {
    const PAGES: u64 = 2048;
    let file = file(PAGES * 4096);
    let log = DirtyLog::new(file.as_fd(), 0, PAGES * 4096).expect("a log");
    rustix::fs::ftruncate(&file, 4096).expect("its new size");
    for page in (0..PAGES).step_by(2) {
        log.wrote(page * 4096 * BYTE_COVERS, 1);
    }
    assert_eq!(bytes(&file, 0, 1), [1], "what the file still has is the front end's");
    let Bits::Shared(map) = &*log.bits else { panic!("a front end's log") };
    assert_eq!(map.parts(), 2);
}

#[test]
fn the_front_end_is_told() {
    let signal = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
    let told = signal.try_clone().expect("a descriptor");
    DirtyLog::private(1).expect("a log").with_signal(Some(Arc::new(signal))).notify();
    let mut n = [0; 8];
    assert_eq!(rustix::io::read(&told, &mut n), Ok(8));
}
