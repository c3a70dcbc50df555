//! The ethtool commands that set an interface up for a queue, and those that undo it. They are
//! printed, never run.

use serde::Serialize;

use super::facts::{Facts, Ntuple};
use zerowire_sys::netlink::DataSplit;

/// A command for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What it is for.
    pub purpose: &'static str,
    /// The command; PORT stands for the TCP port that the program listens at.
    pub command: String,
    /// The command that undoes it.
    pub undo: Option<String>,
    /// The setting is so already.
    pub done: bool,
}

/// More queues than this are not named one by one.
const MOST_WEIGHTS: u32 = 64;

/// The command that spreads all flows over the other queues; `None` if this queue is the only one.
pub(super) fn rss_command(interface: &str, queue: u32, count: u32) -> Option<String> {
    let others = count.checked_sub(1).filter(|n| *n > 0)?;
    Some(if queue >= others {
        format!("ethtool -X {interface} equal {others}")
    } else if queue == 0 {
        format!("ethtool -X {interface} start 1 equal {others}")
    } else if count <= MOST_WEIGHTS {
        let weights: Vec<_> = (0..count).map(|q| if q == queue { "0" } else { "1" }).collect();
        format!("ethtool -X {interface} weight {}", weights.join(" "))
    } else {
        // The queues above it stay idle.
        format!("ethtool -X {interface} equal {queue}")
    })
}

/// The commands, in the order in which to run them. Without a queue: for the last one.
pub(super) fn commands(facts: &Facts, queue: Option<u32>) -> Vec<Advice> {
    let i = &facts.link.name;
    let count = facts.receive_queues().unwrap_or(1);
    let queue = queue.unwrap_or(count.saturating_sub(1));
    let thresh = facts.rings.as_ref().ok().and_then(|r| r.hds_thresh);
    let mut list = Vec::with_capacity(7);
    let most = facts.channels.as_ref().map_or(0, |c| c.receive_queues_max());
    if (count..most).contains(&queue) {
        list.push(Advice {
            purpose: "as many queues",
            command: facts.queues_command(queue + 1),
            undo: Some(facts.queues_command(count)),
            done: false,
        });
    }
    let count = count.max(queue.saturating_add(1));
    list.push(Advice {
        purpose: "header split",
        command: format!("ethtool -G {i} tcp-data-split on"),
        // Off may have been the driver's own choice, and not all take it as a wish (fbnic).
        undo: Some(format!("ethtool -G {i} tcp-data-split auto")),
        done: facts.data_split() == Some(DataSplit::On),
    });
    if let Some(bytes) = thresh {
        list.push(Advice {
            purpose: "header split of frames of all lengths",
            command: format!("ethtool -G {i} hds-thresh 0"),
            undo: (bytes > 0).then(|| format!("ethtool -G {i} hds-thresh {bytes}")),
            done: bytes == 0,
        });
    }
    if let Some(command) = rss_command(i, queue, count) {
        list.push(Advice {
            purpose: "other flows to the other queues (RSS)",
            command,
            undo: Some(format!("ethtool -X {i} default")),
            done: facts.rss.as_ref().is_ok_and(|r| !r.table.is_empty() && r.share(queue).0 == 0),
        });
    }
    if facts.ntuple != Some(Ntuple::On) {
        list.push(Advice {
            purpose: "flow steering",
            command: format!("ethtool -K {i} ntuple on"),
            undo: Some(format!("ethtool -K {i} ntuple off")),
            done: false,
        });
    }
    for flow in ["tcp6", "tcp4"] {
        list.push(Advice {
            purpose: if flow == "tcp6" { "the program's port to the queue, IPv6" } else { "the same, IPv4" },
            command: format!("ethtool -N {i} flow-type {flow} dst-port PORT action {queue}"),
            undo: Some(format!("ethtool -N {i} delete ID")),
            done: facts.rules_for(queue).any(|r| r.flow == flow),
        });
    }
    list
}
