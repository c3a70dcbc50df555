use super::*;
use crate::area::{Area, AreaOptions, Pages};
use crate::recv::zcrx::areas::AreaCut;

fn shared(entries: u32) -> Arc<SharedIfq> {
    let area = Area::new(AreaOptions { buffer_bytes: 4096, buffers: 4, pages: Pages::Normal }).unwrap();
    let cut = AreaCut { area_bytes: 4 * 4096, buffer_bytes: 4096, token: 0 };
    Arc::new(SharedIfq::new(Areas::new(area, cut), None, Arc::new(ZcrxRegion::alone(entries).unwrap())))
}

fn piece(off: u64) -> Rqe {
    Rqe { off, len: 1, pad: 0 }
}

/// The kernel never counts what it copies of a frame's linear part, so that a queue's figure is
/// never exact.
#[test]
fn a_queue_tells_that_its_figure_may_be_too_high() {
    let area = Area::new(AreaOptions { buffer_bytes: 4096, buffers: 4, pages: Pages::Normal }).unwrap();
    let cut = AreaCut { area_bytes: 4 * 4096, buffer_bytes: 4096, token: 0 };
    let areas = || Areas::new(area.clone(), cut);
    let of = |queue, region| SharedIfq::new(areas(), queue, Arc::new(region)).zero_copied();
    let queue = || Some(("eth1".to_owned(), 3));
    assert_eq!(
        of(queue(), ZcrxRegion::alone(8).unwrap()),
        ZeroCopied::Unknown,
        "Linux before 7.2 counts nothing"
    );
    assert_eq!(of(queue(), ZcrxRegion::counting(8).unwrap()), ZeroCopied::AtMost);
    assert_eq!(of(None, ZcrxRegion::alone(8).unwrap()), ZeroCopied::Exact);
    assert_eq!(of(None, ZcrxRegion::counting(8).unwrap()), ZeroCopied::Exact);
}

#[test]
fn what_two_threads_give_back_arrives_once() {
    const EACH: u64 = 2000;
    let shared = shared(8);
    let mut seen = vec![0u32; 2 * EACH as usize];
    std::thread::scope(|scope| {
        for first in [0, EACH] {
            let shared = &shared;
            scope.spawn(move || {
                let mut waiting = VecDeque::new();
                for off in first..first + EACH {
                    waiting.push_back(piece(off));
                    shared.publish(&mut waiting);
                }
                while !waiting.is_empty() {
                    std::thread::yield_now();
                    shared.publish(&mut waiting);
                }
            });
        }
        let mut left = 2 * EACH;
        while left > 0 {
            match shared.region.take() {
                Some(entry) => {
                    seen[entry.off as usize] += 1;
                    left -= 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
    assert!(seen.iter().all(|count| *count == 1) && shared.untaken() == 0);
}

#[test]
fn what_a_receiver_leaves_behind_comes_to_the_others() {
    let shared = shared(8);
    let ring = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let left = Leftover::new(Arc::clone(&shared), Arc::new(ring));
    left.set(vec![piece(1), piece(2)], vec![piece(3)]);
    let mut waiting = VecDeque::new();
    shared.publish(&mut waiting);
    assert_eq!(shared.region.take(), Some(piece(3)));
    assert_eq!(shared.region.take(), None, "leases are still out");
    drop(left);
    waiting.push_back(piece(4));
    shared.publish(&mut waiting);
    let all: Vec<_> = std::iter::from_fn(|| shared.region.take().map(|e| e.off)).collect();
    assert_eq!(all, [4, 1, 2]);
}
