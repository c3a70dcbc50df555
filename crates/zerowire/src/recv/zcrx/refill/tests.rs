use super::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum RefillStep {
    Return(u8),
    Publish,
    Take(u8),
}

fn step() -> impl Strategy<Value = RefillStep> {
    prop_oneof![
        (1..9u8).prop_map(RefillStep::Return),
        Just(RefillStep::Publish),
        (1..9u8).prop_map(RefillStep::Take),
    ]
}

proptest! {
    /// Against a kernel that takes entries when it likes: each arrives once, in order, and none
    /// is overwritten before it was taken. The ring is never over-full, across the end of the
    /// positions too.
    #[test]
    fn every_entry_arrives_once(start in prop_oneof![Just(0u32), u32::MAX - 9..=u32::MAX], steps in prop::collection::vec(step(), 0..200)) {
        const ENTRIES: u32 = 8;
        let (mut book, mut waiting) = (RefillRing { entries: ENTRIES, tail: start }, VecDeque::new());
        let mut ring = [None; ENTRIES as usize];
        let (mut head, mut tail) = (start, start);
        let (mut next, mut taken) = (0u64, 0u64);
        for step in steps {
            match step {
                RefillStep::Return(count) => for _ in 0..count {
                    waiting.push_back(Rqe { off: next, len: 1, pad: 0 });
                    next += 1;
                },
                RefillStep::Publish => {
                    let new = book.publish(&mut waiting, head, |at, entry| {
                        let place = &mut ring[(at % ENTRIES) as usize];
                        assert!(place.is_none(), "overwrites an entry that was not taken");
                        *place = Some(entry.off);
                    });
                    tail = new.unwrap_or(tail);
                    prop_assert!(tail.wrapping_sub(head) <= ENTRIES);
                    prop_assert!(waiting.is_empty() || book.untaken(head) == ENTRIES);
                }
                RefillStep::Take(count) => for _ in 0..count {
                    if head == tail { break; }
                    prop_assert_eq!(ring[(head % ENTRIES) as usize].take(), Some(taken));
                    taken += 1;
                    head = head.wrapping_add(1);
                },
            }
            prop_assert_eq!(next, taken + u64::from(book.untaken(head)) + waiting.len() as u64);
        }
    }
}

/// On a NIC's queue a buffer holds up to 16 leases: free leases say nothing of free buffers.
#[test]
fn an_area_is_low_when_half_of_its_buffers_may_be_lent() {
    assert_eq!([0, 7, 8, 16, 256].map(|lent| is_low(lent, 16, false)), [false, false, true, true, true]);
    assert_eq!([0, 1].map(|lent| is_low(lent, 16, true)), [false, true], "others may want it");
}

#[test]
fn a_head_that_cannot_be_stops_the_ring_and_nothing_else() {
    let (mut book, mut waiting) = (RefillRing::new(4), VecDeque::from([Rqe::default()]));
    assert_eq!(book.publish(&mut waiting, 1, |_, _| panic!("no room is known")), None);
    assert_eq!((waiting.len(), book.publish(&mut waiting, 0, |_, _| ())), (1, Some(1)));
}
