//! The report on an interface and a queue as text.

use std::fmt::Write;

use zerowire_probe::CheckOutcome;
use zerowire_probe::queue::{Advice, QueueReport, QueueState, Settings};

use super::render::{INDENT, MARK, Style, bold, line, machine, mark};
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
    let count = |o| report.count(o);
    let _ = writeln!(
        out,
        "\n{} ok, {} degraded, {} missing.",
        count(CheckOutcome::Ok),
        count(CheckOutcome::Degraded),
        count(CheckOutcome::Missing)
    );
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
mod tests {
    use super::*;
    use zerowire_probe::queue::run;
    use zerowire_sys::netlink::QueueUser;

    const PLAIN: Style = Style { width: 80, colour: false };

    /// Loopback is there everywhere; its report has every part.
    #[test]
    fn a_report_has_its_parts_in_order() {
        let one = report(&run("lo", Some(0)), &PLAIN);
        let at = |word: &str| one.find(word).unwrap_or_else(|| panic!("no {word} in {one}"));
        assert!(at("into queue 0 of lo") < at("queue number") && at("queue number") < at("Commands for"));
        assert!(at("Commands for") < at("What follows"));
        assert!(
            !one.contains("Receive queues") && report(&run("lo", None), &PLAIN).contains("Receive queues")
        );
        for text in [&one, &report(&run("lo", None), &PLAIN)] {
            let commands = ["ethtool ", "ip ", "back: "];
            let is_command = |line: &&str| commands.iter().any(|c| line.trim_start().starts_with(c));
            let wide: Vec<_> =
                text.lines().filter(|l| l.chars().count() > PLAIN.width && !is_command(l)).collect();
            assert!(wide.is_empty(), "wider than {}: {wide:#?}", PLAIN.width);
        }
        let none = report(&run("nowhere0", None), &PLAIN);
        assert!(!none.contains("Commands") && !none.contains("As a port"));
    }

    #[test]
    fn the_text_tells_of_zero_copy_what_the_kernel_does() {
        let mut found = run("lo", None);
        let Some(settings) = &mut found.settings else { panic!("no loopback: {found:?}") };
        let mut device = settings.xdp.clone().unwrap_or_default();
        for (features, word) in
            [(Some(0x7f), "driver has AF_XDP's"), (Some(0x77), "has no zero-copy"), (None, "not tell")]
        {
            settings.xdp = features.map(|bits| {
                device.xdp_features = bits;
                device.clone()
            });
            assert!(port(settings)[0].1.contains(word), "{features:?}");
        }
        let text = report(&found, &PLAIN);
        assert!(text.contains("As a port") && text.contains("link=follow"), "{text}");
    }

    #[test]
    fn queues_in_the_same_state_share_a_line() {
        let found = run("lo", None);
        let Some(first) = found.queues.first() else { panic!("no queue: {found:?}") };
        let list: Vec<_> = (0..4)
            .map(|n| {
                let mut queue = first.clone();
                queue.queue = n;
                queue.rules = Some(usize::from(n == 3));
                // The longest of each.
                queue.user = Some(QueueUser::Lease);
                queue.rss = Some((128, 128));
                queue
            })
            .collect();
        let mut out = String::new();
        queues(&mut out, &list);
        let lines: Vec<_> = out.lines().map(str::trim).collect();
        assert_eq!(lines.len(), 3, "{out}");
        assert!(out.lines().all(|line| line.chars().count() <= PLAIN.width), "{out}");
        assert!(
            lines[1].starts_with("0 to 2") && lines[2].starts_with("3 ") && lines[2].ends_with('1'),
            "{out}"
        );
    }

    #[test]
    fn a_command_that_is_done_has_no_way_back() {
        let mut out = String::new();
        let advice =
            |done| Advice { purpose: "p", command: "c".to_owned(), undo: Some("u".to_owned()), done };
        command(&mut out, &advice(true), &PLAIN);
        assert_eq!(out, "  p (it is so):\n    c\n");
        command(&mut out, &advice(false), &PLAIN);
        assert!(out.ends_with("  p:\n    c\n    back: u\n"), "{out}");
    }
}
