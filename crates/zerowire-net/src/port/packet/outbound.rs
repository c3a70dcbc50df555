//! Whether frames of the guest go by a ring that is shared with the kernel, and what is done where
//! there can be none.
//!
//! A ring is the port's, and outlives the rings of the guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zerowire::ledger::Counters;
use zerowire::packet::PacketOptions;
use zerowire_sys::netlink::LinkInfo;

use super::frame_ring::FrameRing;
use super::{Link, PacketRings, PacketSockets, PacketSpec};

/// How long to wait before another attempt to open a ring.
const RETRY: Duration = Duration::from_millis(500);

/// Whether frames of the guest go by a ring on a port, or why not.
pub(super) fn is_wanted(spec: &PacketSpec) -> Result<(), String> {
    match spec.rings {
        PacketRings::Off => Err("no ring, as asked".to_owned()),
        PacketRings::On => Ok(()),
        PacketRings::Auto => {
            let kind = LinkInfo::find(&spec.interface).ok().and_then(|l| l.kind).unwrap_or_default();
            match PacketOptions::lending_is_lost(&kind) {
                true => Err(format!("no ring, since a {kind} copies what it is lent")),
                false => Ok(()),
            }
        }
    }
}

/// How frames of the guest go.
pub(super) struct Outbound {
    /// The sockets of another process, one of which has the ring; None where this one opens it.
    pub(super) handed: Option<Arc<PacketSockets>>,
    /// Whether to use a ring, or why not.
    wanted: Result<(), String>,
    /// True: if the ring can't be opened, retry again and again (`rings=on`).
    insists: bool,
    pub(super) ring: Option<Box<FrameRing>>,
    /// Why a ring that is wanted does not exist.
    problem: Option<String>,
    retry_at: Option<Instant>,
}

impl Outbound {
    pub(super) fn new(handed: Option<Arc<PacketSockets>>, wanted: Result<(), String>, insists: bool) -> Self {
        Self { handed, wanted, insists, ring: None, problem: None, retry_at: None }
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        match (&self.wanted, &self.ring) {
            (_, Some(ring)) => format!("frames out by a {}", ring.path()),
            (Err(why), None) => why.clone(),
            (Ok(()), None) => self.problem.clone().unwrap_or_else(|| "no ring yet".to_owned()),
        }
    }

    /// Whether the ring has frames that the kernel had no room for.
    pub(super) fn is_waiting(&self) -> bool {
        self.ring.as_ref().is_some_and(|r| r.is_waiting())
    }

    /// Opens the ring that is wanted and not there, as soon as the interface is.
    #[inline]
    pub(super) fn open(&mut self, link: &mut Link) {
        if self.ring.is_none() && self.wanted.is_ok() && link.is_up() {
            self.open_if_due(link);
        }
    }

    #[cold]
    fn open_if_due(&mut self, link: &mut Link) {
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let before = self.problem.take();
        let opened = match &self.handed {
            None => FrameRing::open(&link.name()).map_err(|e| e.to_string()),
            Some(sockets) => FrameRing::take_over(sockets).map_err(|e| e.to_string()),
        };
        match opened {
            Ok(ring) => (self.ring, self.retry_at) = (Some(Box::new(ring)), None),
            // The frames of the guest before may not be out of it.
            Err(e) if self.insists || self.handed.is_some() => {
                (self.problem, self.retry_at) =
                    (Some(format!("no ring: {e}; tried again")), Some(now + RETRY));
                if self.problem == before {
                    return;
                }
                tracing::error!("{e}; frames go by the packet socket until there is a ring");
            }
            Err(e) => {
                tracing::warn!(
                    "{e}; frames go by the packet socket from now on (rings=auto; with rings=on it would be tried again)"
                );
                self.wanted = Err(format!("no ring: {e}; not tried again (rings=auto)"));
            }
        }
        link.changed = true;
    }

    /// Hands over frames that the kernel had no room for: they are on their way, whether the
    /// guest's own ring runs or not. Returns whether the interface was there.
    #[inline]
    pub(super) fn flush(&mut self, counters: &Counters) -> bool {
        match &mut self.ring {
            Some(ring) if ring.is_waiting() => {
                let there = ring.hand_over(counters, |_| {});
                self.leave();
                there
            }
            _ => true,
        }
    }

    /// Lets go of a ring whose interface is gone.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.ring.take_if(|r| r.gone);
    }

    /// Hands over what the kernel takes, and lets go of the ring; the rest is lost and counted.
    pub(super) fn end(&mut self, counters: &Counters) {
        if let Some(mut ring) = self.ring.take() {
            ring.end(counters);
        }
    }
}
