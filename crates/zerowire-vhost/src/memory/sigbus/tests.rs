use std::os::fd::AsFd;

use super::*;

const PAGE: usize = 4096;

/// A guarded mapping of `pages` pages, each with a mark, whose file then shrinks to `kept`
/// pages.
fn truncated(pages: usize, kept: usize) -> Guarded {
    let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, (pages * PAGE) as u64).expect("its length");
    let map = Guarded::new(Mapping::shared(file.as_fd(), 0, pages * PAGE).expect("a mapping"), PAGE);
    for page in 0..pages {
        write(&map, page, 1);
    }
    rustix::fs::ftruncate(&file, (kept * PAGE) as u64).expect("its new length");
    map
}

fn read(map: &Guarded, page: usize) -> u8 {
    // SAFETY: within the mapping.
    unsafe { map.as_ptr().add(page * PAGE).read_volatile() }
}

fn write(map: &Guarded, page: usize, byte: u8) {
    // SAFETY: within the mapping.
    unsafe { map.as_ptr().add(page * PAGE).write_volatile(byte) };
}

#[test]
fn however_many_pages_are_lost_a_mapping_splits_once() {
    const PAGES: usize = 4096;
    let orders: [fn(usize) -> usize; 2] = [|i| 4 + 2 * i, |i| PAGES - 1 - 2 * i];
    for order in orders {
        let map = truncated(PAGES, 4);
        for i in 0..(PAGES - 4) / 2 {
            assert_eq!(read(&map, order(i)), 0);
            write(&map, order(i), 2);
        }
        assert_eq!(map.parts(), 2);
        assert_eq!(read(&map, 3), 1, "what the file still has is as it was");
        assert_eq!(read(&map, order((PAGES - 4) / 2 - 1)), 2);
    }
}

#[test]
fn one_line_a_second_is_written() {
    let told_at = AtomicI64::new(i64::MIN);
    let due = [7, 7, 7, 8, 8, 10].map(|now| is_due(&told_at, now));
    assert_eq!(due, [true, false, false, true, false, true]);
}

#[test]
fn only_what_a_file_has_lost_is_replaced() {
    let map = || Some((0x20_0000..0x80_0000, PAGE));
    let lost = libc::BUS_ADRERR;
    assert_eq!(action(lost, 0x30_0123, map()), Action::Replace(0x30_0000..0x80_0000));
    assert_eq!(
        action(lost, 0x51_2345, Some((0x20_0000..0x80_0000, 2 << 20))),
        Action::Replace(0x40_0000..0x80_0000)
    );
    assert_eq!(action(libc::BUS_MCEERR_AR, 0x30_0123, map()), Action::End);
    assert_eq!(action(libc::BUS_MCEERR_AO, 0x30_0123, map()), Action::GoOn);
    for code in [lost, libc::BUS_MCEERR_AR] {
        assert_eq!(action(code, 0x30_0123, None), Action::Default);
    }
    assert_eq!(action(libc::BUS_MCEERR_AO, 0x30_0123, None), Action::GoOn);
    let text = HARDWARE[LineFormat::Text as usize];
    assert!(text.contains("hardware error") && !text.contains("front end"), "{text}");
    // For both the kernel says the same (BUS_ADRERR).
    let text = LOST[LineFormat::Text as usize];
    assert!(text.contains("a front end truncated") && text.contains("is full (ENOSPC)"), "{text}");
}

#[test]
fn a_line_of_the_handler_has_each_format() {
    for (lines, level, priority) in [(&LOST, "warn", "<4>"), (&HARDWARE, "error", "<3>")] {
        let text = lines[LineFormat::Text as usize];
        let message = text.strip_prefix("zerowire: ").and_then(|t| t.strip_suffix('\n')).expect("a line");
        let json = lines[LineFormat::Json as usize].strip_suffix('\n').expect("a line");
        let said: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert_eq!(said, serde_json::json!({ "level": level, "message": message }));
        assert_eq!(lines[LineFormat::Journal as usize], format!("{priority}{text}"));
    }
}
