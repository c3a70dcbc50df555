//! What was put up, and what was not.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A wall around a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// A PID namespace: it sees and signals no other process.
    Processes,
    /// An IPC namespace: no memory of others by System V, no message queues.
    Ipc,
    /// A network namespace without interfaces, and without others' abstract unix sockets.
    Network,
    /// A mount namespace with an empty root that can't be written.
    Files,
    /// Another user, and no groups.
    User,
    /// No capability, and none to be had.
    Capabilities,
    /// No core file and no debugger.
    Dumps,
    /// No program gives it rights.
    NoNewPrivileges,
    /// Landlock: no file, no TCP socket, no signal to processes outside.
    Landlock,
    /// A list of system calls; any other one kills the process.
    SystemCalls,
}

impl Layer {
    /// All of them, in the order in which they are put up.
    pub const ALL: [Self; 10] = [
        Self::Processes,
        Self::Ipc,
        Self::Network,
        Self::Files,
        Self::User,
        Self::Capabilities,
        Self::Dumps,
        Self::NoNewPrivileges,
        Self::Landlock,
        Self::SystemCalls,
    ];

    /// What it is called in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Processes => "own processes",
            Self::Ipc => "own IPC",
            Self::Network => "own network",
            Self::Files => "no files",
            Self::User => "own user",
            Self::Capabilities => "no capability",
            Self::Dumps => "no core file",
            Self::NoNewPrivileges => "no new privileges",
            Self::Landlock => "Landlock",
            Self::SystemCalls => "list of system calls",
        }
    }

    /// Whether every kernel that zerowire runs on has it, for every user.
    const fn is_everywhere(self) -> bool {
        matches!(self, Self::Capabilities | Self::Dumps | Self::NoNewPrivileges | Self::SystemCalls)
    }
}

/// One layer of a confined process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Which one.
    pub layer: Layer,
    /// Why it is not there; None where it is.
    pub missing: Option<String>,
}

/// What a process was confined by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfineReport {
    /// The layers, in the order in which they were put up.
    pub layers: Vec<LayerReport>,
}

impl ConfineReport {
    /// The layers that are not there, with their reasons, for the log; None where all are.
    pub fn missing(&self) -> Option<String> {
        let missing = |l: &LayerReport| Some(format!("{} ({})", l.layer.name(), l.missing.as_ref()?));
        let texts: Vec<_> = self.layers.iter().filter_map(missing).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Whether this layer is there.
    pub fn has(&self, layer: Layer) -> bool {
        self.layers.iter().any(|l| l.layer == layer && l.missing.is_none())
    }
}

/// Why a process can't be confined. The text is what the user reads.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfineError {
    /// Others could act with the rights that one thread gives up.
    #[error("a process of {0} threads can't be confined: it must have one")]
    Threads(usize),
    /// A layer that every platform has is not there.
    #[error("can't be confined: {}: {cause}", layer.name())]
    Layer {
        /// Which one.
        layer: Layer,
        /// What the kernel said.
        cause: String,
    },
}

/// Puts layers up one after the other.
pub(crate) struct Steps<'a> {
    without: &'a [Layer],
    report: ConfineReport,
}

impl<'a> Steps<'a> {
    /// Leaves the layers of `without` out.
    pub(crate) fn new(without: &'a [Layer]) -> Self {
        Self { without, report: ConfineReport::default() }
    }

    /// Puts a layer up, or a further part of it.
    pub(crate) fn take(&mut self, layer: Layer, step: impl FnOnce() -> Result<(), String>) {
        if self.without.contains(&layer) {
            return;
        }
        let missing = step().err();
        match self.report.layers.iter_mut().find(|l| l.layer == layer) {
            Some(before) => before.missing = before.missing.take().or(missing),
            None => self.report.layers.push(LayerReport { layer, missing }),
        }
    }

    /// The report, or the first layer that should be there and is not.
    pub(crate) fn finish(self) -> Result<ConfineReport, ConfineError> {
        let fatal = self.report.layers.iter().find(|l| l.missing.is_some() && l.layer.is_everywhere());
        match fatal {
            None => Ok(self.report),
            Some(LayerReport { layer, missing }) => {
                Err(ConfineError::Layer { layer: *layer, cause: missing.clone().unwrap_or_default() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_there_if_all_of_its_parts_are() {
        let mut steps = Steps::new(&[Layer::User]);
        steps.take(Layer::Ipc, || Ok(()));
        steps.take(Layer::User, || Err("left out".to_owned()));
        steps.take(Layer::Landlock, || Err("old kernel".to_owned()));
        steps.take(Layer::Landlock, || Ok(()));
        let report = steps.finish().expect("what is missing is not everywhere");
        assert!(report.has(Layer::Ipc) && !report.has(Layer::User) && !report.has(Layer::Landlock));
        assert_eq!(report.missing().as_deref(), Some("Landlock (old kernel)"));
    }

    #[test]
    fn a_layer_that_is_everywhere_must_be_there() {
        let mut steps = Steps::new(&[]);
        steps.take(Layer::SystemCalls, || Err("EINVAL".to_owned()));
        let error = steps.finish().expect_err("no list of system calls");
        assert_eq!(error.to_string(), "can't be confined: list of system calls: EINVAL");
    }
}
