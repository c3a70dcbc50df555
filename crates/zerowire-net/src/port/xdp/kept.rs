//! Queues of an interface that one process has and another one moves frames on. Each child has
//! sockets of its own.

use std::os::fd::BorrowedFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use super::handed::XdpOutcome;
use super::{XdpAccess, XdpPort, XdpQueues, XdpSpec};
use crate::port::kept::text;
use crate::port::{KeptPort, OpenPort, PortAnswer, PortParts, PortText};

/// What a child can't find out.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct QueueFacts {
    /// Whether the interface's driver has a zero-copy mode.
    has_zero_copy: bool,
    /// What may be pinned, bytes; None where the limit of the user holds.
    pin_bytes: Option<u64>,
}

impl KeptPort for XdpQueues {
    fn hand(&self) -> Result<PortText, String> {
        let facts = QueueFacts { has_zero_copy: self.has_zero_copy, pin_bytes: self.pin_bytes() };
        let control = self.control.try_clone().map_err(|e| e.to_string())?;
        Ok((text(&facts)?, vec![control]))
    }

    fn carry_out(&self, verb: &str, fds: &[BorrowedFd<'_>]) -> PortAnswer {
        PortAnswer::to(verb, |verb| {
            let (outcome, fds) = match self.ask(verb, fds) {
                Ok((answer, fds)) => (XdpOutcome::Ok(answer), fds),
                Err(refusal) => (Err(refusal), Vec::new()),
            };
            PortAnswer::done(Ok(outcome), fds)
        })
    }

    fn asking_pairs(&self) -> Option<usize> {
        Some(self.spec.queues)
    }

    fn part(&self) {
        self.release();
    }

    fn interface(&self) -> String {
        self.name()
    }
}

/// Queues of another process.
pub(super) fn take_over(spec: &XdpSpec, mut parts: PortParts<'_>) -> Result<OpenPort, String> {
    let QueueFacts { has_zero_copy, pin_bytes } = parts.facts()?;
    let access = XdpAccess::take_over(spec, parts.fd()?, parts.keeper);
    prepare(pin_bytes);
    let spec = spec.clone();
    Ok(OpenPort::new(move |policy| XdpPort::of(spec, access, has_zero_copy, policy)))
}

/// Prepares a process to move frames for another one before it is confined: it may pin this many
/// bytes; None leaves it its limit.
fn prepare(pin_bytes: Option<u64>) {
    if let Some(bytes) = pin_bytes {
        let limit = Some(bytes).filter(|bytes| *bytes != u64::MAX);
        if setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).is_err() {
            // That takes CAP_SYS_RESOURCE. An error names the limit if guest memory exceeds it.
            let maximum = getrlimit(Resource::Memlock).maximum;
            let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
        }
    }
    zerowire_sys::xdp::read_limit_for_good();
    zerowire_sys::pages::open_for_good();
}
