//! The report as text.

use std::fmt::Write;

use zerowire_probe::{Check, CheckOutcome, DoctorReport, Group, MachineFacts, Verdict};

use zerowire_cli::columns::hang;

/// How the text is to look.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Columns.
    pub width: usize,
    /// ANSI colours.
    pub colour: bool,
}

/// Columns of the word in front of each line, with the space after it.
pub(super) const MARK: usize = 10;
/// Columns of a check's title, with the space after it.
const TITLE: usize = 24;
/// Columns of a job's name in the summary.
const NAME: usize = 7;
/// Columns in front of everything below a heading.
pub(super) const INDENT: usize = 2;

/// The whole report.
pub fn report(report: &DoctorReport, style: &Style) -> String {
    let mut out = machine(&report.machine, style);
    for group in Group::ALL {
        let checks: Vec<_> = report.checks.iter().filter(|c| c.subject.group == group).collect();
        if checks.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{}", bold(heading(group), style));
        for c in checks {
            out.push_str(&line(c, style));
        }
    }
    let _ = writeln!(out, "\n{}", bold("What runs here", style));
    for v in &report.verdicts {
        out.push_str(&verdict(v, style));
    }
    let _ = writeln!(out, "\n{}", hang(&summary(report), 0, style.width));
    out
}

pub(super) fn machine(m: &MachineFacts, style: &Style) -> String {
    let cpus = if m.cores == 1 { "CPU" } else { "CPUs" };
    let is_virtual = if m.virtualised { ", virtual" } else { "" };
    let first = format!(
        "Linux {} on {}, {} {cpus}{is_virtual} ({}), {:.1} GiB of memory, pages of {} KiB",
        m.kernel,
        m.arch,
        m.cores,
        m.cpu,
        m.memory_bytes as f64 / f64::from(1 << 30),
        m.page_bytes / 1024
    );
    let who = match (m.euid, m.nested_user) {
        (0, false) => "root".to_owned(),
        (0, true) => "root of its own user namespace".to_owned(),
        (user, false) => format!("user {user}"),
        (user, true) => format!("user {user} of a user namespace of its own"),
    };
    let caps = match (m.caps.as_slice(), m.caps_absent.as_slice()) {
        ([], _) => "without capabilities".to_owned(),
        (all, []) => format!("with {}", all.join(", ")),
        (some, absent) => format!("with {}; without {}", some.join(", "), absent.join(", ")),
    };
    let filter = if m.seccomp { "; under a seccomp filter" } else { "" };
    format!(
        "{}\n{}\n",
        hang(&first, 0, style.width),
        hang(&format!("Run by {who}, {caps}{filter}"), 0, style.width)
    )
}

fn heading(group: Group) -> &'static str {
    match group {
        Group::Shared => "Common ground",
        Group::Net => "net: a VM's frames to a tap or an interface, and back",
        Group::Vm => "Virtual machines to attach",
        Group::Send => "send: programs that send",
        Group::Recv => "recv: programs that receive",
        Group::Vsock => "vsock: streams and messages of VMs, with each other and with programs",
    }
}

pub(super) fn line(c: &Check, style: &Style) -> String {
    let f = &c.finding;
    let column = INDENT + MARK + TITLE;
    let mut out = format!(
        "{:INDENT$}{}{:TITLE$}{}\n",
        "",
        mark(f.outcome, style),
        c.subject.title,
        hang(&f.found, column, style.width)
    );
    if f.outcome == CheckOutcome::Ok {
        return out;
    }
    let mut below = |label: &str, text: &str| {
        let column = INDENT + MARK + label.len();
        let _ = writeln!(out, "{:1$}{label}{2}", "", INDENT + MARK, hang(text, column, style.width));
    };
    below("effect: ", &f.consequence);
    if let Some(remedy) = &f.remedy {
        below("remedy: ", remedy);
    }
    out
}

fn verdict(v: &Verdict, style: &Style) -> String {
    format!(
        "{:INDENT$}{}{:NAME$}{}\n",
        "",
        mark(v.outcome, style),
        v.job.name(),
        hang(&v.text, INDENT + MARK + NAME, style.width)
    )
}

/// Counts, and whether each job runs.
fn summary(report: &DoctorReport) -> String {
    let count = |o| report.count(o);
    let counts = format!(
        "{} ok, {} degraded, {} missing.",
        count(CheckOutcome::Ok),
        count(CheckOutcome::Degraded),
        count(CheckOutcome::Missing)
    );
    report.verdicts.iter().fold(counts, |text, v| {
        let state = match v.outcome {
            CheckOutcome::Ok => "is ready",
            CheckOutcome::Degraded => "works, on a lesser path",
            CheckOutcome::Missing => "can't run here: see the remedies above",
        };
        format!("{text} zerowire {} {state}.", v.job.name())
    })
}

pub(super) fn mark(outcome: CheckOutcome, style: &Style) -> String {
    let code = match outcome {
        CheckOutcome::Ok => "32",
        CheckOutcome::Degraded => "33",
        CheckOutcome::Missing => "31",
    };
    paint(&format!("{:MARK$}", outcome.word()), code, style)
}

pub(super) fn bold(text: &str, style: &Style) -> String {
    paint(text, "1", style)
}

/// Wraps `text` into an ANSI sequence (ECMA-48 §8.3.117) if colours are on.
fn paint(text: &str, code: &str, style: &Style) -> String {
    if style.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
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
}
