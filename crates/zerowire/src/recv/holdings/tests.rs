use super::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum BookStep {
    Take,
    Untake(u32),
    Lend(u32, u32),
    Back(u32),
}

fn step() -> impl Strategy<Value = BookStep> {
    prop_oneof![
        3 => Just(BookStep::Take),
        1 => (0..9u32).prop_map(BookStep::Untake),
        3 => (0..9u32, 0..4u32).prop_map(|(s, p)| BookStep::Lend(s, p)),
        3 => (0..9u32).prop_map(BookStep::Back),
    ]
}

proptest! {
    /// Against a model with a set a state: no slot is ever in two, whatever the requests, wrong
    /// ones included.
    #[test]
    fn every_slot_is_in_one_state(steps in prop::collection::vec(step(), 0..200)) {
        const SLOTS: u32 = 8;
        let mut book = SlotBook::new(SLOTS as usize, 3);
        book.grow(3);
        let mut model: Vec<Option<Option<u32>>> = vec![None; SLOTS as usize];
        for step in steps {
            match step {
                BookStep::Take => match book.take() {
                    Some(slot) => {
                        prop_assert_eq!(model[slot as usize], None);
                        model[slot as usize] = Some(None);
                    }
                    None => prop_assert!(model.iter().all(Option::is_some)),
                },
                BookStep::Untake(slot) => {
                    book.untake(slot);
                    if let Some(m) = model.get_mut(slot as usize).filter(|m| **m == Some(None)) {
                        *m = None;
                    }
                }
                BookStep::Lend(slot, place) => {
                    let may = place < 3 && model.get(slot as usize) == Some(&Some(None));
                    prop_assert_eq!(book.lend(slot, place), may);
                    if may {
                        model[slot as usize] = Some(Some(place));
                    }
                }
                BookStep::Back(slot) => match (book.give_back(slot), model.get(slot as usize)) {
                    (Some((place, held)), Some(&Some(Some(p)))) => {
                        prop_assert_eq!(place, p);
                        model[slot as usize] = None;
                        prop_assert_eq!(held, book.held(place));
                    }
                    (None, Some(&Some(Some(_)))) => prop_assert!(false, "a lent slot was refused"),
                    (answer, _) => prop_assert_eq!(answer, None),
                },
            }
            prop_assert_eq!(book.free(), model.iter().filter(|m| m.is_none()).count());
            for place in 0..3 {
                let held = model.iter().filter(|m| **m == Some(Some(place))).count() as u32;
                prop_assert_eq!(book.held(place), held);
                prop_assert_eq!(book.room(place), 3u32.saturating_sub(held));
            }
        }
    }
}

#[test]
fn a_paused_connection_resumes_below_three_quarters() {
    let book = SlotBook::new(64, 16);
    assert!(book.may_resume(12) && !book.may_resume(13));
    assert!(SlotBook::new(1, 1).may_resume(0), "a share of one resumes when it is given back");
    assert_eq!(SlotBook::new(4, 100).share, 4);
}

#[test]
fn slots_that_are_added_are_taken_last() {
    let mut book = SlotBook::new(2, 1);
    book.grow(1);
    let first = book.take().unwrap();
    assert!(book.lend(first, 0));
    assert_eq!((book.room(0), book.add_slots(3, 4), book.slots(), book.free()), (0, 5, 5, 4));
    assert_eq!(book.room(0), 3);
    assert_eq!(std::iter::from_fn(|| book.take()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(book.give_back(first), Some((0, 0)));
    assert_eq!((book.take(), book.take()), (Some(first), None));
}
