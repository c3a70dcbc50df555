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

/// How many checks ended in which way.
pub(super) fn counts(count: impl Fn(CheckOutcome) -> usize) -> String {
    let outcomes = [CheckOutcome::Ok, CheckOutcome::Degraded, CheckOutcome::Missing];
    let [ok, degraded, missing] = outcomes.map(count);
    format!("{ok} ok, {degraded} degraded, {missing} missing.")
}

/// Counts, and whether each job runs.
fn summary(report: &DoctorReport) -> String {
    report.verdicts.iter().fold(counts(|o| report.count(o)), |text, v| {
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
mod tests;
