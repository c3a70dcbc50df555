use super::*;
use crate::case::{Direction, WorkingSet};

#[test]
fn each_byte_is_copied_and_looked_at() {
    let placement = Placement::detect().unwrap();
    for len in [4096, 512 << 10] {
        let case = RxCase { direction: Direction::Transmit, len, working_set: WorkingSet::Hot, windows: 4 };
        let mut floor = RxFloor::new(&case, HostCpu::Guest, &placement, 256 << 10).unwrap();
        let bytes = (8 << 20) + 100;
        for line in [RxWay::FloorTouch, RxWay::FloorCopyTouch] {
            let sample = floor.run(line, bytes).unwrap();
            assert_eq!(sample.bytes, bytes);
            assert!(sample.dequeues >= bytes / len as u64);
            assert!(sample.program_cpu_seconds > 0.0);
            assert_eq!(sample.backend_cpu_seconds > 0.0, line == RxWay::FloorCopyTouch);
        }
        for line in [RxWay::FloorTouchWoken, RxWay::FloorCopyTouchWoken] {
            let sample = floor.run(line, bytes).unwrap();
            let portion = (4 * len).min((256 << 10).max(len)) as u64;
            assert_eq!(sample.bytes, bytes.next_multiple_of(portion));
            assert_eq!(sample.wake_ups, sample.bytes / portion);
            assert!(sample.program_cpu_seconds > 0.0 && sample.backend_cpu_seconds > 0.0);
        }
        floor.run(RxWay::FloorCopyTouch, bytes).unwrap();
        // The last ring that was filled holds what the walk was at.
        let all = floor.source.bytes();
        assert_eq!(floor.ring.bytes()[..100], all[floor.walk_start()..][..100]);
    }
}

impl RxFloor {
    /// Where the last full turn of the ring began: 100 bytes behind a multiple of the ring's
    /// length.
    fn walk_start(&self) -> usize {
        self.at() - 100
    }

    fn at(&self) -> usize {
        // An empty stretch tells the place without moving it.
        let mut walk = self.walk;
        walk.next(1, usize::MAX).start
    }
}
