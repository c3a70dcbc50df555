//! Lends payload as it lies in guest memory, and takes chains back.

use std::time::Instant;

use zerowire_vhost::memory::{GuestMemory, Segment};
use zerowire_wire::doorbell;
use zerowire_wire::mapped::{DAEMON_WAITS_AT, ENTRY_DIRECT, REGION_SHIFT};

use super::Windows;
use crate::mapped::direct::DirectChain;

impl Windows {
    /// Whether chains are lent.
    pub fn lends(&self) -> bool {
        self.direct.as_ref().is_some_and(|d| d.lent > 0)
    }

    /// Lends a packet to the program as it lies in guest memory. False where that is not possible
    /// now: the caller copies it.
    pub fn lend(
        &mut self,
        memory: &GuestMemory,
        parts: &[Segment],
        chain: DirectChain,
        end: Option<u32>,
        now: Instant,
    ) -> bool {
        let Some(direct) = &mut self.direct else { return false };
        if parts.is_empty()
            || !direct.may_lend(now)
            || parts.iter().any(|s| direct.place(memory, s).is_none())
        {
            return false;
        }
        let entries = 2 * parts.len();
        if entries > self.options.max_entries() {
            return false;
        }
        if self.filling.entries + entries > self.options.max_entries() {
            self.publish();
        }
        if !self.begin() {
            return false;
        }
        for (i, s) in parts.iter().enumerate() {
            let Some((region, at)) = self.direct.as_ref().and_then(|d| d.place(memory, s)) else { break };
            let end = if i + 1 == parts.len() { end.unwrap_or(0) } else { 0 };
            self.entry(self.filling.entries, s.len, end | ENTRY_DIRECT | region << REGION_SHIFT);
            self.entry(self.filling.entries + 1, at as u32, (at >> 32) as u32);
            self.filling.entries += 2;
            self.filling.bytes += s.len as usize;
        }
        self.filling.open = None;
        self.filling.in_message = self.is_unfinished(end);
        if let Some(direct) = &mut self.direct {
            direct.lend(self.filling.window, chain, now);
        }
        true
    }

    /// Chains of windows that were released since.
    pub fn take_back(&mut self, chains: &mut Vec<DirectChain>) {
        let Some(mut direct) = self.direct.take() else { return };
        direct.take_begun(chains);
        for w in 0..self.options.windows {
            if direct.is_out(w) && self.is_ours(w) {
                direct.take_back(w, chains);
            }
        }
        self.direct = Some(direct);
    }

    /// Asks the program to tell of a release, while chains are lent: `of_any`, or of the window
    /// that went out last. The release of that one brings all back with one word. Returns true if a
    /// window is back by now.
    pub fn wait_for_chains(&mut self, of_any: bool) -> bool {
        let Some(direct) = self.direct.as_ref().filter(|d| d.lent > 0) else { return false };
        let last = direct.out().max_by_key(|w| self.age(*w));
        match last.filter(|_| !of_any) {
            Some(last) => drop(self.wait_for(last)),
            None => {
                // The announcement stays, whatever is found: a window that is waited for elsewhere
                // may rest on the same word.
                let _ = doorbell::announce(self.memory.word(DAEMON_WAITS_AT), doorbell::ANY, || false);
            }
        }
        let Some(direct) = self.direct.as_ref() else { return false };
        direct.has_back() || direct.out().any(|w| self.is_ours(w))
    }
}
