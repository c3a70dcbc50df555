//! Sets an interface up for zero-copy receive into one queue, and sets it back. Header split is on
//! for frames of all lengths, and the other flows are spread over the other queues.
//!
//! The only code here that changes anything, and only for who asks for it by name. Each step keeps
//! what was before. Dropping [`Configured`] sets it back in reverse order, also when a later step
//! failed. Drop it after the receiver that has the queue is gone. This may take up to 2 s, until
//! the kernel has taken the queue back. A process that is killed (SIGKILL) leaves the settings:
//! [`Configured::changes`] names the commands that set them back by hand.
//!
//! What was before is what the kernel tells, which is what is in effect. Header split that a driver
//! chose to leave off is set back to off, not to the driver's choice.
//!
//! Rules that steer a port's flows to the queue have no message in netlink; `ethtool -N` makes
//! them.

use zerowire_sys::netlink::{DataSplit, Ethtool, LinkInfo, NetlinkError, Rss};

use super::restore::{PAUSE, Undo, UndoStep, set_back, table_back};

/// Why an interface could not be set up, or set back.
#[derive(Debug, thiserror::Error)]
#[error("{interface}: {problem}")]
pub struct ConfigureError {
    interface: String,
    problem: ConfigureProblem,
}

/// What is wrong. But for the last one, what had been changed was set back.
#[derive(Debug, thiserror::Error)]
enum ConfigureProblem {
    /// Not root, or root of another user namespace.
    #[error("changing its settings needs CAP_NET_ADMIN in the user namespace of its network namespace")]
    Privilege,
    /// The driver has no header split that could be set (EOPNOTSUPP to ETHTOOL_MSG_RINGS_SET).
    #[error(
        "header split can't be turned on: its driver doesn't take tcp-data-split (EOPNOTSUPP); drivers that do, with \
         a queue for zero-copy receive: bnxt_en, mlx5_core, gve, fbnic"
    )]
    NoHeaderSplit,
    /// The driver refused a step (an XDP program is attached for example, which takes frames in one
    /// piece).
    #[error("{step} was refused: {cause}")]
    Refused { step: &'static str, cause: NetlinkError },
    /// The interface doesn't exist, or netlink doesn't work.
    #[error("{0}")]
    Interface(NetlinkError),
    /// Some of it could not be set back, not in 2 s either: another program uses the queue perhaps.
    #[error("could not be set back: {cause}; by hand, when nothing uses the queue: {commands}")]
    NotSetBack { cause: NetlinkError, commands: String },
}

/// A change that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What it does, with the values before and after.
    pub what: String,
    /// The command that sets it back by hand.
    pub back: String,
}

/// An interface whose settings were changed. Dropping it sets them back, and logs what could not
/// be.
#[derive(Debug)]
pub struct Configured {
    ethtool: Ethtool,
    interface: String,
    index: u32,
    steps: Vec<UndoStep>,
    /// What was changed, in order.
    pub(super) changes: Vec<Change>,
    /// What was left as it is, and why.
    pub(super) notes: Vec<String>,
}

impl Configured {
    /// Sets `interface` up for zero-copy receive into `queue`. What is so already is left alone. If
    /// other flows could not be kept from the queue, it leaves a note instead of an error. The
    /// queue can be registered all the same.
    ///
    /// # Errors
    /// See [`ConfigureError`]: nothing is changed then.
    pub fn apply(interface: &str, queue: u32) -> Result<Self, ConfigureError> {
        let failed = |cause| error(interface, ConfigureProblem::Interface(cause));
        let index = LinkInfo::find(interface).map_err(failed)?.index;
        let ethtool = Ethtool::open().map_err(failed)?;
        let mut configured = Self {
            ethtool,
            interface: interface.to_owned(),
            index,
            steps: Vec::new(),
            changes: Vec::new(),
            notes: Vec::new(),
        };
        configured.split()?;
        configured.spread(queue)?;
        Ok(configured)
    }

    /// Sets everything back. Waits up to 2 s for a queue that was given back a moment ago.
    ///
    /// # Errors
    /// The first step that failed; the others were attempted all the same.
    pub fn restore(mut self) -> Result<(), ConfigureError> {
        let result = self.set_back();
        self.steps.clear();
        result
    }

    /// Header split on, for frames of all lengths.
    fn split(&mut self) -> Result<(), ConfigureError> {
        // A driver that tells nothing may still take it: its answer to the change counts.
        let rings = self.ethtool.rings(self.index).unwrap_or_default();
        if rings.data_split != Some(DataSplit::On) {
            let step = "turning header split on (tcp-data-split on)";
            self.ethtool.set_data_split(self.index, Some(DataSplit::On)).map_err(|e| match e.errno() {
                Some(libc::EOPNOTSUPP) => error(&self.interface, ConfigureProblem::NoHeaderSplit),
                _ => self.refused(step, e),
            })?;
            let before = word(rings.data_split);
            self.changed(
                Undo::DataSplit(rings.data_split),
                format!("header split: {before} -> on"),
                format!("ethtool -G {} tcp-data-split {before}", self.interface),
            );
        }
        if let Some(bytes) = rings.hds_thresh.filter(|bytes| *bytes > 0) {
            let step = "splitting frames of all lengths (hds-thresh 0)";
            self.ethtool.set_hds_thresh(self.index, 0).map_err(|e| self.refused(step, e))?;
            self.changed(
                Undo::Threshold(bytes),
                format!("frames that are split: longer than {bytes} bytes -> all"),
                format!("ethtool -G {} hds-thresh {bytes}", self.interface),
            );
        }
        Ok(())
    }

    /// Other flows to the other queues.
    fn spread(&mut self, queue: u32) -> Result<(), ConfigureError> {
        let rss = match self.ethtool.rss(self.index) {
            Ok(rss) if !rss.table.is_empty() => rss,
            _ => {
                self.note("RSS: the driver doesn't tell its table, which was left alone");
                return Ok(());
            }
        };
        let count = self.ethtool.channels(self.index).map_or(0, |c| c.receive_queues());
        let Some(table) = without(&rss, queue, count) else { return Ok(()) };
        if table.is_empty() {
            self.note("RSS: there is no other queue that other flows could go to");
            return Ok(());
        }
        match self.ethtool.set_rss_table(self.index, &table) {
            Ok(()) => {
                let (own, all) = rss.share(queue);
                let (undo, back) = table_back(&self.interface, &rss.table, count);
                let what = format!("RSS: {own} of {all} entries name queue {queue} -> none");
                self.changed(undo, what, back);
                Ok(())
            }
            // The message came with Linux 6.17, and not all drivers take a table.
            Err(e) if matches!(e.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {
                self.note(
                    "RSS: was left alone, since this kernel (before 6.17) or driver takes no table by netlink: use 'ethtool -X'",
                );
                Ok(())
            }
            Err(e) => Err(self.refused("keeping other flows off the queue (RSS)", e)),
        }
    }

    fn changed(&mut self, undo: Undo, what: String, back: String) {
        self.steps.push(UndoStep { undo, back: back.clone() });
        self.changes.push(Change { what, back });
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn refused(&self, step: &'static str, cause: NetlinkError) -> ConfigureError {
        let problem = match cause.errno() {
            Some(libc::EPERM | libc::EACCES) => ConfigureProblem::Privilege,
            _ => ConfigureProblem::Refused { step, cause },
        };
        error(&self.interface, problem)
    }

    fn set_back(&mut self) -> Result<(), ConfigureError> {
        let pause = || std::thread::sleep(PAUSE);
        set_back(&mut self.ethtool, self.index, &mut self.steps, pause).map_err(|cause| {
            let commands: Vec<_> = self.steps.iter().rev().map(|s| s.back.as_str()).collect();
            error(&self.interface, ConfigureProblem::NotSetBack { cause, commands: commands.join("; ") })
        })
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // A caller that wants the error calls `restore`.
        if let Err(e) = self.set_back() {
            tracing::error!("{e}");
        }
    }
}

fn error(interface: &str, problem: ConfigureProblem) -> ConfigureError {
    ConfigureError { interface: interface.to_owned(), problem }
}

fn word(split: Option<DataSplit>) -> &'static str {
    match split {
        Some(DataSplit::On) => "on",
        Some(DataSplit::Off) => "off",
        None => "auto",
    }
}

/// The table with other queues in place of `queue`: those that it names, else all of the `count`
/// ones. `None`: it doesn't name the queue; empty: the interface has no other one.
fn without(rss: &Rss, queue: u32, count: u32) -> Option<Vec<u32>> {
    if !rss.table.contains(&queue) {
        return None;
    }
    let mut others: Vec<u32> = rss.table.iter().copied().filter(|q| *q != queue).collect();
    others.sort_unstable();
    others.dedup();
    if others.is_empty() {
        others = (0..count).filter(|q| *q != queue).collect();
    }
    if others.is_empty() {
        return Some(Vec::new());
    }
    let mut next = others.iter().copied().cycle();
    let other = |q: &u32| if *q == queue { next.next().unwrap_or(*q) } else { *q };
    Some(rss.table.iter().map(other).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_lose_the_queue_and_keep_the_rest() {
        let rss = |table: &[u32]| Rss { table: table.to_vec(), ..Rss::default() };
        assert_eq!(without(&rss(&[0, 1, 2, 3, 0, 1]), 1, 4), Some(vec![0, 0, 2, 3, 0, 2]));
        assert_eq!(without(&rss(&[0, 2]), 1, 4), None);
        assert_eq!(without(&rss(&[1, 1, 1]), 1, 3), Some(vec![0, 2, 0]));
        assert_eq!(without(&rss(&[0, 0]), 0, 1), Some(Vec::new()));
    }

    #[test]
    fn interfaces_without_header_split_say_so() {
        let error = Configured::apply("lo", 0).expect_err("loopback has no rings");
        match rustix::process::geteuid().is_root() {
            true => assert!(matches!(error.problem, ConfigureProblem::NoHeaderSplit), "{error}"),
            false => assert!(matches!(error.problem, ConfigureProblem::Privilege), "{error}"),
        }
        let error = Configured::apply("nowhere0", 0).expect_err("no such interface").to_string();
        assert!(error.contains("nowhere0"), "{error}");
    }
}
