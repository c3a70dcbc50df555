//! The report on an interface and a queue as text.

use std::fmt::Write;

use zerowire_probe::CheckOutcome;
use zerowire_probe::queue::{Advice, QueueReport, QueueState, Settings};

use super::render::{INDENT, MARK, Style, bold, counts, line, machine, mark};
use zerowire_cli::columns::hang;

/// The whole report.
pub fn report(report: &QueueReport, style: &Style) -> String {
    let mut out = machine(&report.machine, style);
    let heading = match report.queue {
        Some(q) => format!("Zero-copy receive into queue {q} of {}", report.interface),
        None => format!("Zero-copy receive into a queue of {}", report.interface),
    };
    let _ = writeln!(out, "\n{}", bold(&heading, style));
    for check in &report.checks {
        out.push_str(&line(check, style));
    }
    if report.queue.is_none() && !report.queues.is_empty() {
        let _ = writeln!(out, "\n{}", bold("Receive queues", style));
        queues(&mut out, &report.queues);
    }
    if let Some(settings) = &report.settings {
        let _ = writeln!(out, "\n{}", bold("As a port (zerowire net --port xdp:IF, packet:IF)", style));
        for (word, text) in port(settings) {
            let text = hang(text, INDENT + PORT_WORD, style.width);
            let _ = writeln!(out, "{:INDENT$}{word:<PORT_WORD$}{text}", "");
        }
    }
    if !report.commands.is_empty() {
        let possible = report.verdict.outcome != CheckOutcome::Missing || !is_hopeless(report);
        let heading = if possible {
            "Commands, in this order (none is run here)"
        } else {
            "Commands for an interface that can (this one can't)"
        };
        let _ = writeln!(out, "\n{}", bold(heading, style));
        for advice in &report.commands {
            command(&mut out, advice, style);
        }
    }
    let _ = writeln!(out, "\n{}", bold("What follows", style));
    let verdict = &report.verdict;
    let text = hang(&verdict.text, INDENT + MARK, style.width);
    let _ = writeln!(out, "{:INDENT$}{}{text}", "", mark(verdict.outcome, style));
    let _ = writeln!(out, "\n{}", counts(|o| report.count(o)));
    out
}

/// Columns of the word that begins a line about ports.
const PORT_WORD: usize = 12;

/// What the interface is as a VM's port.
fn port(settings: &Settings) -> [(&'static str, &'static str); 2] {
    let zero_copy = match &settings.xdp {
        Some(device) if device.has_xsk_zerocopy() => {
            "the driver has AF_XDP's zero-copy mode; mode=auto takes it where it is safe for the guest, and offloads are off by \
             default"
        }
        Some(_) => {
            "the driver has no zero-copy mode of AF_XDP: the kernel copies each frame once (mode=copy)"
        }
        None => "the kernel does not tell whether the driver has AF_XDP's zero-copy mode (Linux 6.3)",
    };
    let link = "with link=follow the guest's link goes down and up with the interface's; its front end must connect again by \
                itself (QEMU: reconnect=1)";
    [("zero copy", zero_copy), ("link", link)]
}

/// No setting helps where the driver can't.
fn is_hopeless(report: &QueueReport) -> bool {
    report.checks.iter().any(|c| c.subject.id == "queue.driver" && c.finding.outcome == CheckOutcome::Missing)
}

/// One line for each run of queues that are in the same state.
fn queues(out: &mut String, list: &[QueueState]) {
    let _ =
        writeln!(out, "{:INDENT$}{:<10}{:<36}{:<16}steering rules", "", "queue", "used by", "RSS entries");
    for run in list.chunk_by(|a, b| (a.user, a.rss, a.rules) == (b.user, b.rss, b.rules)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let number = if run.len() == 1 {
            first.queue.to_string()
        } else {
            format!("{} to {}", first.queue, last.queue)
        };
        let user = first.user.map_or("the kernel's own stack", |u| u.name());
        let each = if run.len() > 1 { " each" } else { "" };
        let rss = first.rss.map_or("not told".to_owned(), |(own, all)| format!("{own} of {all}{each}"));
        let rules = first.rules.map_or("not told".to_owned(), |n| n.to_string());
        let _ = writeln!(out, "{:INDENT$}{number:<10}{user:<36}{rss:<16}{rules}", "");
    }
}

/// A command stands on a line of its own, whole, to be copied.
fn command(out: &mut String, advice: &Advice, style: &Style) {
    let done = if advice.done { " (it is so)" } else { "" };
    let purpose = hang(&format!("{}{done}:", advice.purpose), INDENT, style.width);
    let _ = writeln!(out, "{:INDENT$}{purpose}", "");
    let _ = writeln!(out, "{:1$}{2}", "", 2 * INDENT, advice.command);
    if let Some(undo) = advice.undo.as_ref().filter(|_| !advice.done) {
        let _ = writeln!(out, "{:1$}back: {undo}", "", 2 * INDENT);
    }
}

#[cfg(test)]
mod tests;
