use super::super::rates::tests::{moved as amount, server, vm};
use super::*;

/// A state with two samples, a second apart: `b` moves most, `c` copies all.
fn state() -> TopState {
    let vms = |n: u64| {
        vec![
            vm("a", amount(10 * n, 0)),
            vm("b", amount(90 * n, 900 * n)),
            vm("c", amount(20 * n, 20_000 * n)),
        ]
    };
    let mut state = TopState { size: (100, 20), ..TopState::default() };
    state.take(Ok(server(1.0, vms(1))));
    state.take(Ok(server(2.0, vms(2))));
    state
}

fn names(state: &TopState) -> String {
    state.vms().iter().map(|vm| vm.now.name.as_str()).collect()
}

fn selected(state: &TopState) -> String {
    let vms = state.vms();
    vms[state.selected_row(&vms)].now.name.clone()
}

#[test]
fn letters_sort_and_the_same_one_reverses() {
    let mut state = state();
    assert_eq!(names(&state), "abc");
    for (letter, want) in [('t', "bca"), ('t', "acb"), ('z', "cba"), ('n', "abc"), ('n', "cba"), ('r', "abc")]
    {
        assert_eq!(state.press(TopKey::Char(letter)), AfterKey::GoOn);
        assert_eq!(names(&state), want, "{letter}");
    }
    // One that has just come has no rates, and comes last.
    let mut vms = vec![vm("new", amount(1000, 0))];
    vms.extend(state.last.as_ref().expect("a sample").vms.clone());
    state.press(TopKey::Char('t'));
    state.take(Ok(server(3.0, vms)));
    assert!(names(&state).ends_with("new"), "{}", names(&state));
}

#[test]
fn the_selection_stays_with_its_vm() {
    let mut state = state();
    assert_eq!(selected(&state), "a");
    state.press(TopKey::Down);
    assert_eq!(selected(&state), "b");
    state.press(TopKey::Char('t'));
    assert_eq!((names(&state).as_str(), selected(&state).as_str()), ("bca", "b"));
    for (key, want) in [
        (TopKey::Up, "b"),
        (TopKey::End, "a"),
        (TopKey::Down, "a"),
        (TopKey::Home, "b"),
        (TopKey::PageDown, "a"),
        (TopKey::PageUp, "b"),
        (TopKey::Char('j'), "c"),
        (TopKey::Char('k'), "b"),
        (TopKey::Char('x'), "b"),
    ] {
        state.press(key);
        assert_eq!(selected(&state), want, "{key:?}");
    }
    // It goes, and the first one is selected.
    let mut sample = state.last.clone().expect("a sample");
    sample.uptime_seconds += 1.0;
    sample.vms.retain(|vm| vm.name != "b");
    state.take(Ok(sample));
    assert_eq!(selected(&state), "a", "{}", names(&state));
}

#[test]
fn a_pause_holds_the_picture_and_no_sample() {
    let mut state = state();
    let frames = |state: &TopState| state.vms()[0].rates.as_ref().expect("rates").transmit.frames;
    assert_eq!(frames(&state), 10.0);
    state.press(TopKey::Char('p'));
    state.take(Ok(server(3.0, vec![vm("a", amount(500, 0))])));
    assert_eq!((frames(&state), state.vms().len()), (10.0, 3));
    state.press(TopKey::Char(' '));
    state.take(Ok(server(4.0, vec![vm("a", amount(600, 0))])));
    assert_eq!(frames(&state), 100.0, "the rate of the last second, and not since the pause");
}

#[test]
fn a_server_that_is_gone_leaves_its_last_picture() {
    let mut state = state();
    state.take(Err("no server".to_owned()));
    assert_eq!((names(&state).as_str(), state.problem.as_deref()), ("abc", Some("no server")));
    state.take(Ok(server(3.0, Vec::new())));
    assert_eq!((names(&state).as_str(), state.problem.as_deref()), ("", None));
    for key in [TopKey::Down, TopKey::End, TopKey::Enter, TopKey::Char('t')] {
        state.press(key);
    }
    assert_eq!(state.page, TopPage::Table, "there is no VM to show");
}

#[test]
fn keys_open_a_vm_go_back_and_end() {
    let mut state = state();
    state.press(TopKey::Down);
    state.press(TopKey::Enter);
    assert_eq!((state.page, state.selected.as_deref()), (TopPage::Detail(0), Some("b")));
    state.press(TopKey::Char('t'));
    assert_eq!(state.sorting.key, SortKey::Name, "nothing is sorted there");
    // What is longer than the terminal can be moved.
    state.size = (100, 6);
    state.press(TopKey::Down);
    assert_eq!(state.page, TopPage::Detail(1));
    state.press(TopKey::End);
    let end = state.page;
    state.press(TopKey::Down);
    assert_eq!(state.page, end, "the last line stays");
    state.size = (100, 200);
    state.press(TopKey::Down);
    assert_eq!(state.page, TopPage::Detail(0), "there is room for all");
    state.press(TopKey::Escape);
    assert_eq!(state.page, TopPage::Table);
    assert_eq!(state.press(TopKey::Escape), AfterKey::Quit);
    state.press(TopKey::Enter);
    for key in [TopKey::Interrupt, TopKey::Char('q')] {
        assert_eq!(state.press(key), AfterKey::Quit, "{key:?}");
    }
}
