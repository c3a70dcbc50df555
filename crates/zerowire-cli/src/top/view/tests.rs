use super::super::keys::TopKey;
use super::super::rates::tests::{moved, server, vm};
use super::super::state::Sorting;
use super::*;

/// Two samples, a second apart: `web` moves 125 000 frames and copies a tenth, `idle` nothing, and
/// `new` has just come.
fn state(columns: usize, rows: usize) -> TopState {
    let web = |n: u64| {
        let mut web = vm("web", moved(125_000 * n, 12_500_000 * n));
        web.receive = moved(10 * n, 0);
        web.receive.dropped_frames.insert("no_room".to_owned(), 40 * n);
        (web.socket, web.port) = ("/run/web.sock".to_owned(), "tap:web0".to_owned());
        (web.interface, web.path) = ("web0".to_owned(), "writev".to_owned());
        web
    };
    let mut idle = vm("idle", moved(5, 5));
    idle.connected = false;
    let mut state = TopState::new(Sorting::default(), (columns, rows));
    state.take(Ok(server(59.0, vec![idle.clone(), web(1)])));
    state.take(Ok(server(60.0, vec![vm("new", moved(9, 0)), idle, web(2)])));
    state
}

#[test]
fn the_table_has_a_row_for_each_vm() {
    assert_eq!(
        draw(&state(100, 8)).text(),
        [
            "zerowire 1.2.3  3 VMs  up 1 min 0 s  CPU 25 %  by name",
            "name state     tx frames tx Gb/s rx frames rx Gb/s dropped zero copy reason",
            "idle waiting           0   0.000         0   0.000       0         - -",
            "new  connected         -       -         -       -       -         - -",
            "web  connected    125000   1.000        10   0.000      40    90.0 % small",
            "",
            "",
            "q quit  up/down select  enter details  p pause  sort: n name  t transmit  r receive  d dropped  z ze",
        ]
    );
}

#[test]
fn the_selected_row_stands_out() {
    let mut state = state(80, 8);
    state.press(TopKey::Char('t'));
    state.press(TopKey::Down);
    let canvas = draw(&state);
    assert!(canvas.text()[0].ends_with("by transmit"), "{:?}", canvas.text());
    assert!(canvas.row(3).starts_with("\x1b[0;7midle "), "{:?}", canvas.row(3));
    assert!(canvas.row(2).starts_with("\x1b[0mweb "), "{:?}", canvas.row(2));
    state.press(TopKey::Char('t'));
    state.press(TopKey::Char('p'));
    assert!(draw(&state).text()[0].ends_with("by transmit, reversed  PAUSED"));
}

#[test]
fn more_vms_than_rows_are_shown_page_by_page() {
    let vms = (0..10).map(|n| vm(&format!("vm{n}"), moved(0, 0))).collect();
    let mut state = TopState::new(Sorting::default(), (80, 7));
    state.take(Ok(server(1.0, vms)));
    let names = |state: &TopState| -> Vec<String> {
        let text = draw(state).text();
        text[2..6].iter().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    assert_eq!(names(&state), ["vm0", "vm1", "vm2", "vm3"]);
    state.press(TopKey::PageDown);
    assert_eq!(names(&state), ["vm4", "vm5", "vm6", "vm7"]);
    state.press(TopKey::End);
    assert_eq!(names(&state), ["vm8", "vm9", "", ""]);
}

#[test]
fn details_have_rates_sums_and_reasons() {
    let mut state = state(100, 24);
    state.press(TopKey::End);
    state.press(TopKey::Enter);
    let text = draw(&state).text();
    assert_eq!(
        text[1..20],
        [
            "web: connected",
            "  socket       /run/web.sock",
            "  port         tap:web0",
            "  interface    web0 up",
            "  path         writev",
            "  connections  0, 0 ended by an error",
            "  ring errors  0",
            "  restarts     0",
            "",
            "                            transmit/s        transmit       receive/s         receive",
            "frames                          125000          250000              10              20",
            "Gb                               1.000           2.000           0.000           0.000",
            "zero copy                       90.0 %          90.0 %         100.0 %         100.0 %",
            "system calls                         0               0               0               0",
            "kicks                                0               0               0               0",
            "calls                                0               0               0               0",
            "bytes copied:",
            "  small                       12500000        25000000               0               0",
            "frames dropped:",
        ]
    );
    assert_eq!(
        text[20],
        "  no_room                            0               0              40              80"
    );
    assert_eq!(text[23], DETAIL_KEYS);
    // A process that hangs.
    let mut hangs = state.vms().last().expect("the selected VM").now.clone();
    (hangs.faults.restarts, hangs.faults.child_answers) = (2, Some(false));
    state.take(Ok(server(60.5, vec![hangs])));
    let lines = ["  restarts     2", "  process      does not answer: the figures may be older"];
    let text = draw(&state).text();
    assert_eq!((text[1].as_str(), &text[8..10]), ("web: no answer", &lines.map(str::to_owned)[..]));
    // From a line on, and of a VM that has gone.
    state.size = (100, 10);
    state.press(TopKey::Down);
    assert_eq!(draw(&state).text()[1], "  socket       /run/web.sock");
    state.take(Ok(server(61.0, vec![vm("new", moved(9, 0))])));
    state.press(TopKey::Home);
    assert_eq!(draw(&state).text()[1], "web is gone");
}

#[test]
fn a_problem_stands_in_the_place_of_the_keys() {
    let mut state = state(60, 8);
    state.take(Err("no server can be reached".to_owned()));
    let canvas = draw(&state);
    assert_eq!(canvas.text()[7], "trying again: no server can be reached");
    assert!(canvas.row(7).starts_with("\x1b[0;7m"), "{:?}", canvas.row(7));
    assert!(canvas.text()[4].starts_with("web "), "the last figures stay");
}

#[test]
fn a_terminal_may_have_any_size() {
    for columns in [0, 1, 10, 79, 1000] {
        for rows in [0, 1, 2, 3, 4, 1000] {
            let mut state = state(columns, rows);
            for key in [TopKey::PageDown, TopKey::Enter, TopKey::End, TopKey::Escape] {
                state.press(key);
                let canvas = draw(&state);
                assert!(canvas.columns <= columns && canvas.rows() <= rows);
            }
        }
    }
    let empty = TopState::new(Sorting::default(), (40, 5));
    assert_eq!(
        draw(&empty).text()[..3],
        ["zerowire top", "name state tx frames tx Gb/s rx frames r", "no VMs"]
    );
}

#[test]
fn plain_text_keeps_long_names_and_moves_no_cursor() {
    let long = "x".repeat(NAME_COLUMNS + 1) + "\x1b[2J";
    let mut state = TopState::new(Sorting::default(), (200, 5));
    state.take(Ok(server(1.0, vec![vm(&long, moved(1, 0))])));
    let text = plain(&state.vms());
    assert!(text.contains(&format!("{}?[2J connected", "x".repeat(NAME_COLUMNS + 1))), "{text:?}");
    assert!(draw(&state).text()[2].starts_with(&format!("{}… connected", "x".repeat(NAME_COLUMNS - 1))));
    assert_eq!(plain(&[]), "no VMs\n");
}
