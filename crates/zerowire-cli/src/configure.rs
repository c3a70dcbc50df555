//! `--configure`: an interface's settings changed for as long as the command runs.

use anyhow::{Context, Result};
use zerowire::netlink::Configured;
use zerowire::probe::queue;

/// Sets an interface up for zero-copy receive into `queue`, and says on standard error what was changed. Dropping the result
/// sets it back.
pub fn apply(interface: &str, queue: u32, quiet: bool) -> Result<Configured> {
    let configured = Configured::apply(interface, queue)
        .with_context(|| format!("--configure changed nothing on {interface}"))?;
    if !quiet {
        for change in configured.changes() {
            eprintln!("{interface}: {} (set back at the end; by hand: {})", change.what, change.back);
        }
        if configured.changes().is_empty() {
            eprintln!("{interface}: nothing had to be changed");
        }
        for note in configured.notes() {
            eprintln!("{interface}: {note}");
        }
    }
    Ok(configured)
}

/// Sets it back.
pub fn restore(configured: Configured) -> Result<()> {
    configured.restore().context("--configure could not set everything back")
}

/// The commands that steer the flows of `port` to the queue, as far as they were not given yet: netlink has none for it.
pub fn steering(interface: &str, queue: u32, port: u16) -> Vec<String> {
    let report = queue::run(interface, Some(queue));
    let missing = report.commands.into_iter().filter(|c| !c.done && c.command.contains("PORT"));
    missing.map(|c| c.command.replace("PORT", &port.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_changed_where_nothing_can_be() {
        let error = format!("{:#}", apply("lo", 0, true).expect_err("loopback has no header split"));
        assert!(error.contains("--configure changed nothing on lo"), "{error}");
    }

    #[test]
    fn steering_names_port_and_queue() {
        for command in steering("lo", 3, 9999) {
            assert!(command.contains("dst-port 9999 action 3"), "{command}");
        }
    }
}
