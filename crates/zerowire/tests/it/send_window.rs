//! The book of what is lent, against a model: coalesced, out of order, wrapped, duplicate, unknown,
//! lost.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use zerowire::send::testing::Window;
use zerowire::send::{Payload, Ticket};

#[derive(Clone, Debug)]
enum Step {
    Copied,
    Lend {
        gap: u32,
    },
    /// Opens a payload and lends `parts` parts of it; then closes it, or not until the next one.
    Parts {
        parts: u32,
        close: bool,
    },
    Close,
    /// A range relative to the oldest id that is out.
    Notify {
        at: u32,
        span: u32,
        copied: bool,
    },
    AllBack,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Copied),
        6 => (0u32..3).prop_map(|gap| Step::Lend { gap: gap / 2 }),
        2 => (0u32..4, any::<bool>()).prop_map(|(parts, close)| Step::Parts { parts, close }),
        1 => Just(Step::Close),
        8 => (0u32..12, 0u32..6, any::<bool>()).prop_map(|(at, span, copied)| Step::Notify { at, span, copied }),
        1 => Just(Step::AllBack),
    ]
}

/// What the window should hold: ids that are out by payload, and whether more parts may follow.
#[derive(Default)]
struct Model {
    ids: BTreeMap<u64, u64>,
    payloads: BTreeMap<u64, (usize, bool, bool)>,
    next_id: u64,
    next: u64,
    open: Option<u64>,
    done: BTreeMap<u64, bool>,
}

impl Model {
    fn settle(&mut self) {
        let ids: Vec<u64> = self.ids.values().copied().collect();
        let open = self.open;
        self.payloads.retain(|t, (_, copied, _)| {
            let keep = open == Some(*t) || ids.contains(t);
            if !keep {
                self.done.insert(*t, *copied);
            }
            keep
        });
    }
}

fn run(steps: &[Step], ticket0: u32, id0: u32) {
    let mut w = Window::starting_at(Ticket::new(ticket0), id0);
    let handed = Arc::new(Mutex::new(BTreeMap::<u32, (Vec<u8>, bool)>::new()));
    let to = handed.clone();
    w.on_done(Box::new(move |t, p, copied| {
        let bytes = p.segments()[0].bytes().unwrap().to_vec();
        assert!(to.lock().unwrap().insert(t.number(), (bytes, copied)).is_none(), "{t} came back twice");
    }));
    let mut m = Model::default();
    let payload = |n: u64| Payload::from(n.to_le_bytes().to_vec());
    let ticket = |n: u64| Ticket::new(ticket0.wrapping_add(n as u32));
    let id = |n: u64| id0.wrapping_add(n as u32);
    for step in steps {
        match *step {
            Step::Copied => {
                m.settle_open();
                w.close_open();
                assert_eq!(w.copied(payload(m.next)), ticket(m.next));
                m.done.insert(m.next, true);
                m.next += 1;
            }
            Step::Lend { gap } => {
                m.settle_open();
                // A gap needs something before it to be seen as one.
                m.next_id += u64::from(gap);
                assert_eq!(w.lend(payload(m.next), id(m.next_id), false), Ok(ticket(m.next)));
                m.payloads.insert(m.next, (8, false, false));
                m.ids.insert(m.next_id, m.next);
                m.next_id += 1;
                m.next += 1;
            }
            Step::Parts { parts, close } => {
                m.settle_open();
                assert_eq!(w.open(payload(m.next)), ticket(m.next));
                m.payloads.insert(m.next, (8, false, false));
                m.open = Some(m.next);
                for _ in 0..parts {
                    w.add_id(id(m.next_id)).unwrap();
                    m.ids.insert(m.next_id, m.next);
                    m.next_id += 1;
                }
                m.next += 1;
                if close {
                    w.close_open();
                    m.open = None;
                }
            }
            Step::Close => {
                w.close_open();
                m.open = None;
            }
            Step::Notify { at, span, copied } => {
                let oldest = m.ids.keys().next().copied().unwrap_or(m.next_id);
                let lo = (oldest + u64::from(at)).saturating_sub(4);
                let hi = lo + u64::from(span);
                let known = (lo..=hi).filter(|i| m.ids.contains_key(i)).count() as u64;
                for i in lo..=hi {
                    if let Some(p) = m.ids.remove(&i).and_then(|t| m.payloads.get_mut(&t)) {
                        p.1 |= copied;
                    }
                }
                let before = m.payloads.len();
                m.settle();
                match w.notified(id(lo), id(hi), copied) {
                    Ok(done) => {
                        assert_eq!(known, hi - lo + 1);
                        assert_eq!(done, before - m.payloads.len());
                    }
                    Err(e) => assert_eq!(e.unknown, hi - lo + 1 - known, "{e}"),
                }
            }
            Step::AllBack => {
                for t in std::mem::take(&mut m.ids).into_values() {
                    m.payloads.get_mut(&t).unwrap().1 = true;
                }
                let before = m.payloads.len();
                m.settle();
                assert_eq!(w.all_back(), before - m.payloads.len());
            }
        }
        m.settle();
        assert_eq!(w.outstanding(), m.payloads.len());
        assert_eq!(w.outstanding_bytes(), m.payloads.values().map(|p| p.0).sum::<usize>());
        assert_eq!(w.ids_out(), m.ids.len());
        for t in 0..m.next {
            assert_eq!(w.is_done(ticket(t)), Some(m.done.contains_key(&t)), "ticket {t}");
        }
        assert_eq!(w.is_done(ticket(m.next)), None);
        let handed = handed.lock().unwrap();
        assert_eq!(handed.len(), m.done.len());
        for (t, copied) in &m.done {
            assert_eq!(handed[&ticket(*t).number()], (t.to_le_bytes().to_vec(), *copied));
        }
    }
    let mut told = BTreeMap::new();
    while let Some(c) = w.next_completion() {
        for n in 0..c.tickets() {
            let t = u64::from(c.first.plus(n as u32).number().wrapping_sub(ticket0));
            assert!(told.insert(t, c.copied).is_none(), "ticket {t} completed twice");
        }
    }
    assert_eq!(told, m.done);
}

impl Model {
    fn settle_open(&mut self) {
        self.open = None;
        self.settle();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn the_window_agrees_with_the_model(
        steps in proptest::collection::vec(step(), 1..60),
        ticket0 in prop_oneof![Just(0u32), Just(u32::MAX - 5), any::<u32>()],
        id0 in prop_oneof![Just(0u32), Just(u32::MAX - 7), any::<u32>()],
    ) {
        run(&steps, ticket0, id0);
    }
}

#[test]
fn a_range_across_the_wrap_is_one_completion() {
    let mut w = Window::starting_at(Ticket::new(u32::MAX - 1), u32::MAX);
    for i in 0..4u32 {
        w.lend(vec![0; 10].into(), u32::MAX.wrapping_add(i), false).unwrap();
    }
    assert_eq!(w.notified(u32::MAX, 2, false), Ok(4));
    let c = w.next_completion().unwrap();
    assert_eq!((c.first.number(), c.last.number(), c.tickets(), c.copied), (u32::MAX - 1, 1, 4, false));
    assert_eq!((w.next_completion(), w.outstanding_bytes()), (None, 0));
}

#[test]
fn an_absurd_range_is_refused_and_harmless() {
    let mut w = Window::default();
    w.lend(vec![1].into(), 0, false).unwrap();
    assert_eq!(w.notified(1, 0, false).unwrap_err().unknown, 1 << 32);
    assert_eq!(w.notified(5, 1 << 30, false).unwrap_err().unknown, (1 << 30) - 4);
    assert_eq!(w.outstanding(), 1);
    // An id far ahead doesn't count as a gap: the payload is kept until everything is back.
    let t = w.open(vec![2].into());
    assert!(w.add_id(1 << 31).is_err());
    w.close_open();
    assert_eq!((w.notified(0, 0, false), w.is_done(t)), (Ok(1), Some(false)));
    assert_eq!((w.all_back(), w.outstanding()), (1, 0));
}
