//! A tap that one process keeps open for another one. It stays with its address and its bridge.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::{Tap, TapFacts, TapPort, TapSettings, TapSpec};
use crate::config::check_mtu;
use crate::link::LinkState;
use crate::port::kept::text;
use crate::port::{KeptPort, OpenPort, PortAnswer, PortParts, PortText};

/// What a child asks of the process that has opened its tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TapVerb {
    /// Another MTU, bytes.
    SetMtu(usize),
    /// The tap that has the name now takes the place of one that was deleted. True: one may be
    /// made.
    TakeTap(TapSettings, bool),
}

impl KeptPort for Tap {
    /// The facts are [`TapFacts`].
    fn hand(&self) -> Result<PortText, String> {
        let queues: io::Result<_> = (0..self.pairs()).map(|i| self.queue(i)).collect();
        let facts = TapFacts { index: self.index.load(Ordering::Acquire), ..self.facts };
        Ok((text(&facts)?, queues.map_err(|e| e.to_string())?))
    }

    fn carry_out(&self, verb: &str, _fds: &[BorrowedFd<'_>]) -> PortAnswer {
        PortAnswer::to(verb, |verb| {
            let done = match verb {
                TapVerb::SetMtu(mtu) => {
                    check_mtu(mtu as u64).and_then(|mtu| self.raise_mtu(mtu).map_err(|e| e.to_string()))
                }
                TapVerb::TakeTap(settings, may_make) => self.take_again(settings, may_make),
            };
            PortAnswer::done(done, Vec::new())
        })
    }

    fn interface(&self) -> String {
        self.name_now()
    }

    fn link_state(&self) -> LinkState {
        self.link_state()
    }
}

/// A tap of another process.
pub(super) fn take_over(spec: &TapSpec, mut parts: PortParts<'_>) -> Result<OpenPort, String> {
    let queues = (0..spec.queues).map(|_| parts.fd()).collect::<Result<_, _>>()?;
    let tap =
        Tap::take_over(spec.name.clone(), queues, parts.facts()?, parts.keeper).map_err(|e| e.to_string())?;
    Ok(OpenPort::new(|policy| TapPort::of(tap, policy)))
}
