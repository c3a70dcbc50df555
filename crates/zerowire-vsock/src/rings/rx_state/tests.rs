use super::RxState::{self, Flowing, Retry, Starved, StarvedAny};
use super::STARVED_TURNS;

#[test]
fn transitions() {
    let after = |mut state: RxState, event: fn(&mut RxState)| {
        event(&mut state);
        state
    };
    let starved = Starved { turns: 7 };
    let any = StarvedAny { turns: 7 };
    // State, then the state after each of these: no buffer, a notification, movement, the end
    // of patience. Then after a look at a batch, at one buffer too few, and at none.
    let table = [
        (Flowing, [Starved { turns: 0 }, Flowing, Flowing, Flowing, Flowing, Flowing, Flowing]),
        (starved, [starved, Flowing, starved, Retry, Flowing, Starved { turns: 8 }, Starved { turns: 8 }]),
        (Retry, [StarvedAny { turns: 0 }, Retry, Flowing, Retry, Retry, Retry, Retry]),
        (any, [any, Retry, starved, Retry, Retry, StarvedAny { turns: 8 }, StarvedAny { turns: 8 }]),
    ];
    for (state, [no_buffer, fed, moved, gave_up, batch, too_few, none]) in table {
        assert_eq!(after(state, RxState::starve), no_buffer, "{state:?}: no buffer");
        assert_eq!(after(state, RxState::feed), fed, "{state:?}: fed");
        assert_eq!(after(state, RxState::moved), moved, "{state:?}: moved");
        assert_eq!(after(state, |s| _ = s.give_up()), gave_up, "{state:?}: gave up");
        assert_eq!(after(state, |s| assert!(s.look(16, 16))), batch, "{state:?}: a batch");
        assert_eq!(after(state, |s| _ = s.look(15, 16)), too_few, "{state:?}: too few");
        assert_eq!(after(state, |s| _ = s.look(0, 16)), none, "{state:?}: none");
    }
}

#[test]
fn any_buffer_will_do_after_a_while() {
    for mut state in [Starved { turns: STARVED_TURNS - 1 }, StarvedAny { turns: STARVED_TURNS - 1 }] {
        assert!(!state.look(1, 16), "{state:?}");
        assert!(!state.look(0, 16), "{state:?}: none is none");
        assert!(state.is_starved() && state.look(1, 16) && !state.is_starved());
    }
}

#[test]
fn patience_ends_only_where_something_waits() {
    let states = [Flowing, Starved { turns: 0 }, Retry, StarvedAny { turns: 0 }];
    assert_eq!(states.map(|mut s| s.give_up()), [false, true, false, true]);
    assert_eq!(states.map(RxState::is_starved), [false, true, false, true]);
    assert_eq!(states.map(RxState::takes_any), [false, false, true, true]);
    assert_eq!(states.map(RxState::waits_for_batch), [false, true, false, false]);
}
