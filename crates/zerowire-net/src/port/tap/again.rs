//! A tap that somebody deletes, and the one that takes its place.
//!
//! ```text
//!  deleted ─▶ reads and writes fail (EBADFD): frames are dropped and counted
//!             every 500 ms: is there a tap of the name?  ─ yes ─▶ TUNSETIFF on each queue
//!             a front end connects: the same, or make one
//! ```
//!
//! An open /dev/net/tun outlives its interface, and takes another one by TUNSETIFF
//! (drivers/net/tun.c, `tun_detach_all`). So all descriptors stay, those of other processes among
//! them. Only the process that opened them may make that call.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use zerowire_sys::{netdevice, tap};

use super::attach::{index, join};
use super::error::TapError;
use super::interface::{Tap, TapSettings, TapState};
use super::kept::TapVerb;
use crate::link::LinkState;
use crate::port::kept;

/// How often to look for a tap that is gone.
pub(super) const LOOK: Duration = Duration::from_millis(500);

impl Tap {
    /// Whether the interface was deleted.
    pub(super) fn is_gone(&self) -> bool {
        tap::header_len(&self.control).is_err_and(|e| e.raw_os_error() == Some(libc::EBADFD))
    }

    /// Nothing can be set where the interface is gone: the next one gets what the guest has chosen.
    pub(super) fn unless_gone(&self, done: Result<(), TapError>) -> Result<(), TapError> {
        if done.is_err() && self.is_gone() { Ok(()) } else { done }
    }

    /// How many interfaces took the place of one that was deleted: their queues have to be watched
    /// anew.
    #[inline]
    pub(super) fn successors(&self) -> u64 {
        self.successors.load(Ordering::Acquire)
    }

    /// A read or a write found no interface: says what the user has to know, if that is so still.
    pub(super) fn lost(&self) -> Option<String> {
        let mut state = self.state();
        self.find_gone(&mut state).then(|| self.describe_gone(&state))
    }

    /// What is missing, and what to do.
    pub(super) fn describe_gone(&self, state: &TapState) -> String {
        let name = &self.name;
        if let Some(problem) = &state.problem {
            return format!("{problem}; tried again");
        }
        let multi = if self.pairs() > 1 { " multi_queue" } else { "" };
        let own = if self.facts.makes { ", and so does the next connection of a front end" } else { "" };
        format!(
            "tap '{name}' is gone, since somebody deleted it: frames are dropped until there is one again; 'ip tuntap add {name} \
             mode tap vnet_hdr{multi}' makes one{own}"
        )
    }

    /// Whether the interface is gone. The log says so once.
    fn find_gone(&self, state: &mut TapState) -> bool {
        if !state.gone && self.is_gone() {
            state.gone = true;
            tracing::error!("{}", self.describe_gone(state));
        }
        state.gone
    }

    /// If the interface is gone: goes on with the one that has its name now. `may_make` makes one
    /// where there is none, and there was none at the start either.
    pub(super) fn look(&self, may_make: bool) {
        let mut state = self.state();
        if !self.find_gone(&mut state) {
            return;
        }
        let taken = match &self.keeper {
            None => self.replace(&mut state, may_make).map_err(|e| e.to_string()),
            Some(keeper) if may_make || netdevice::flags(keeper.socket(), &self.name).is_ok() => {
                kept::ask::<()>(&**keeper, &TapVerb::TakeTap(state.settings, may_make), &[]).map(drop)
            }
            Some(_) => return,
        };
        match taken {
            Err(problem) if state.problem.as_ref() == Some(&problem) => {}
            Err(problem) => {
                state.problem = Some(problem);
                tracing::error!("{}", self.describe_gone(&state));
            }
            Ok(()) if self.is_gone() => state.problem = None,
            Ok(()) => {
                (state.gone, state.problem) = (false, None);
                self.attach_as_before();
                if let Some(keeper) = &self.keeper {
                    let index = netdevice::index(keeper.socket(), &self.name).unwrap_or(0);
                    self.index.store(index, Ordering::Release);
                }
                self.successors.fetch_add(1, Ordering::Release);
                let name = &self.name;
                match self.link_state() {
                    LinkState::Down => tracing::warn!(
                        "tap '{name}' is there again, and down: frames are dropped until 'ip link set {name} up'"
                    ),
                    _ => tracing::info!("tap '{name}' is there again: frames pass"),
                }
            }
        }
    }

    /// For another process that serves this tap and finds it gone: its descriptors become queues of
    /// the interface that has the name now, with these settings. `may_make` is as in the process
    /// that opened it. Does nothing without an interface.
    ///
    /// # Errors
    /// What the user reads.
    pub(super) fn take_again(&self, settings: TapSettings, may_make: bool) -> Result<(), String> {
        if !matches!(settings.header_len, 10 | 12) {
            return Err(format!("headers of {} bytes: there are 10 and 12", settings.header_len));
        }
        let mut state = self.state();
        state.gone |= self.is_gone();
        if !state.gone {
            return Ok(());
        }
        state.settings = settings;
        self.replace(&mut state, may_make).map_err(|e| e.to_string())?;
        state.gone = self.is_gone();
        Ok(())
    }

    fn replace(&self, state: &mut TapState, may_make: bool) -> Result<(), TapError> {
        let there = index(&self.name);
        if there.is_none() && !(may_make && self.facts.makes) {
            return Ok(());
        }
        let multi = self.pairs() > 1;
        for (i, queue) in self.queues.iter().enumerate() {
            match join(queue, &self.name, multi, 0) {
                // It is one already.
                Err(TapError::Attach { cause, .. }) if cause.raw_os_error() == Some(libc::EEXIST) => {}
                joined => joined?,
            }
            // Before there is another queue whose frames would have other headers.
            if i == 0 {
                self.apply(state.settings)?;
            }
        }
        let index = index(&self.name);
        self.index.store(index.unwrap_or(0), Ordering::Release);
        state.made = index != there;
        if state.made {
            state.mtu.map_or(Ok(()), |mtu| self.set_mtu(mtu))?;
            self.set_up()?;
        }
        Ok(())
    }

    /// All queues take part in the traffic of a new interface: takes out those that did not before.
    fn attach_as_before(&self) {
        for (queue, attached) in self.queues.iter().zip(&self.attached).skip(1) {
            // One that is so already is an error, and no harm.
            let _: io::Result<()> = tap::attach_queue(queue, attached.load(Ordering::Acquire));
        }
    }
}
