use super::*;

fn region(entries_at: usize, entries: u32, stats: Option<usize>) -> io::Result<ZcrxRegion> {
    let layout = RegionLayout { head: 0, tail: 4, entries_at, entries, stats };
    ZcrxRegion::new(crate::uring::zcrx::memory(8192).unwrap(), layout, 8192)
}

#[test]
fn places_outside_are_refused() {
    let good = region(64, 8, Some(4096)).unwrap();
    assert_eq!((good.entries(), good.head(), good.tail(), good.has_events()), (8, 0, 0, true));
    assert_eq!(good.copied(), CopyStats::default());
    good.publish(3);
    assert_eq!(good.tail(), 3);
    for (at, entries, stats) in [
        (64, 7, None),
        (60, 8, None),
        (8192, 8, None),
        (usize::MAX - 15, 8, None),
        (64, 8, Some(128)),
        (64, 8, Some(8192)),
        (64, 8, Some(4100)),
    ] {
        assert!(region(at, entries, stats).is_err(), "{at} {entries} {stats:?}");
    }
}

#[test]
fn entries_and_statistics_fit() {
    for entries in [1, 2, 256, 32768] {
        let (stats, bytes) = lengths(entries);
        assert!(stats >= HEAD_BYTES + entries as usize * 16 && stats + 16 <= bytes);
        assert!(bytes.is_multiple_of(rustix::param::page_size()));
    }
}
