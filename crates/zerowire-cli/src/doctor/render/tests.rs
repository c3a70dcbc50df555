use super::*;
use zerowire_probe::{Finding, Job, Subject};

fn check(group: Group, title: &'static str, outcome: CheckOutcome) -> Check {
    Check {
        subject: Subject { id: "a.b", group, jobs: &[Job::Net], path: "net: x", title },
        finding: Finding {
            outcome,
            found: "this was found, and it takes several words to say it in full".to_owned(),
            consequence: "Something else runs instead of it, which takes more words.".to_owned(),
            remedy: Some("Do what is told here, as root, with many more words.".to_owned()),
        },
    }
}

fn sample(net: CheckOutcome) -> DoctorReport {
    DoctorReport {
        machine: MachineFacts { kernel: "6.18.0".to_owned(), ..MachineFacts::default() },
        checks: vec![
            check(Group::Net, "second", CheckOutcome::Ok),
            check(Group::Shared, "first", CheckOutcome::Degraded),
            check(Group::Net, "third", CheckOutcome::Missing),
        ],
        verdicts: vec![Verdict { job: Job::Net, outcome: net, text: "runs".to_owned() }],
    }
}

const PLAIN: Style = Style { width: 60, colour: false };

#[test]
fn groups_come_in_order_and_remedies_only_where_something_is_wrong() {
    let text = report(&sample(CheckOutcome::Ok), &PLAIN);
    let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("no {word} in {text}"));
    assert!(at("first") < at("second") && at("second") < at("third"));
    assert_eq!(text.matches("remedy: ").count(), 2);
    assert_eq!(text.matches("effect: ").count(), 2);
    assert!(text.contains("1 ok, 1 degraded, 1 missing. zerowire net is ready."));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in [58, 60, 80, 110] {
        let text = report(&sample(CheckOutcome::Ok), &Style { width, colour: false });
        for l in text.lines() {
            assert!(l.chars().count() <= width, "{width}: {l}");
        }
    }
}

#[test]
fn colours_only_when_asked_for() {
    assert!(!report(&sample(CheckOutcome::Ok), &PLAIN).contains('\x1b'));
    let coloured = report(&sample(CheckOutcome::Ok), &Style { colour: true, ..PLAIN });
    for code in ["\x1b[32mok", "\x1b[33mdegraded", "\x1b[31mmissing"] {
        assert!(coloured.contains(code), "{code:?}");
    }
}

#[test]
fn who_runs_it_is_said() {
    let who = |m: MachineFacts| machine(&m, &Style { width: 200, colour: false });
    assert!(who(MachineFacts::default()).contains("Run by root, without capabilities"));
    let user = MachineFacts {
        euid: 7,
        caps: vec!["A"],
        caps_absent: vec!["B"],
        seccomp: true,
        ..MachineFacts::default()
    };
    assert!(who(user).contains("Run by user 7, with A; without B; under a seccomp filter"));
    let nested = MachineFacts { nested_user: true, ..MachineFacts::default() };
    assert!(who(nested).contains("root of its own user namespace"));
}

#[test]
fn the_summary_follows_the_verdict() {
    assert!(summary(&sample(CheckOutcome::Degraded)).contains("lesser path"));
    assert!(summary(&sample(CheckOutcome::Missing)).contains("can't run"));
    let also = Verdict { job: Job::Vsock, outcome: CheckOutcome::Ok, text: String::new() };
    let mut both = sample(CheckOutcome::Degraded);
    both.verdicts.push(also);
    assert!(summary(&both).ends_with("zerowire net works, on a lesser path. zerowire vsock is ready."));
    let other = DoctorReport { verdicts: Vec::new(), ..sample(CheckOutcome::Ok) };
    assert!(summary(&other).ends_with("missing."));
}
