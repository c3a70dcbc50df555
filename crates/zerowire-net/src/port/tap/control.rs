//! The tap: one queue of it a worker.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::again::LOOK;
use super::{Tap, TapInlet, TapOutlet, TapSettings};
use crate::Policy;
use crate::features::{Offloads, header_len, toward_guest};
use crate::io::PortIo;
use crate::link::LinkState;
use crate::port::{Port, PortPath};
use crate::receive::ReceiveSetup;
use crate::stats::Shared;
use crate::worker::{WorkerHandle, WorkerSetup};

/// A tap with what its workers need to know.
pub(super) struct TapPort {
    tap: Arc<Tap>,
    policy: Policy,
}

impl TapPort {
    pub(super) fn of(tap: Tap, policy: Policy) -> Self {
        Self { tap: Arc::new(tap), policy }
    }
}

impl Port for TapPort {
    fn pairs(&self) -> usize {
        self.tap.pairs()
    }

    fn interface(&self) -> String {
        self.tap.name_now()
    }

    fn link_state(&self) -> LinkState {
        self.tap.link_state()
    }

    fn begin(&self) {
        self.tap.look(true);
    }

    fn queue_hint(&self) -> &'static str {
        "give --port tap:NAME,queues=N as many queue pairs as the VMM uses"
    }

    fn offloads(&self) -> Offloads {
        self.tap.facts.offloads
    }

    fn mtu(&self) -> usize {
        self.tap.mtu()
    }

    fn resume_features(&self, acked: u64) -> Result<(), String> {
        let settings = TapSettings { offloads: toward_guest(acked), header_len: header_len(acked) };
        self.tap.choose(settings).map_err(|e| e.to_string())
    }

    fn set_features(&self, acked: u64) -> Result<(), String> {
        self.resume_features(acked)?;
        // What waits in the tap may use offloads that this guest does not know.
        self.tap.flush();
        Ok(())
    }

    fn set_mtu(&self, mtu: usize) -> Result<(), String> {
        self.tap.raise_mtu(mtu).map_err(|e| e.to_string())
    }

    fn attach_queue(&self, pair: usize, on: bool) -> Result<(), String> {
        self.tap.attach_queue(pair, on).map_err(|e| e.to_string())
    }

    fn announce(&self, frame: &[u8]) -> Result<(), String> {
        self.tap.send(frame).map_err(|e| e.to_string())
    }

    fn flush(&self) {
        self.tap.flush();
    }

    fn takes_missing_pages(&self) -> bool {
        true
    }

    fn spawn(&self, setup: WorkerSetup) -> io::Result<WorkerHandle> {
        let queue = self.tap.queue(setup.pair)?;
        let (tap, policy, shared, pair) = (self.tap.clone(), self.policy, setup.shared.clone(), setup.pair);
        WorkerHandle::spawn(setup, move || {
            let (io, successors) = (PortIo::new(queue), tap.successors());
            Ok(TapPath { io, policy, shared, tap, pair, successors, looked_at: None, changed: false })
        })
    }
}

/// Frames go to one queue of a tap, and nothing is lent to the kernel between turns.
struct TapPath {
    io: PortIo,
    policy: Policy,
    /// Has the MTU for rings that start.
    shared: Arc<Shared>,
    tap: Arc<Tap>,
    pair: usize,
    /// [`Tap::successors`] of the interface whose queue is watched.
    successors: u64,
    /// When this thread looked last for an interface that is gone; None while it is there.
    looked_at: Option<Instant>,
    /// True: the description is another one.
    changed: bool,
}

impl TapPath {
    /// A read or a write found no interface.
    #[cold]
    fn lose(&mut self) {
        if self.looked_at.is_none()
            && let Some(why) = self.tap.lost()
        {
            self.shared.set_error(why);
            (self.looked_at, self.changed) = (Some(Instant::now()), true);
        }
    }
}

impl PortPath for TapPath {
    type Queue = PortIo;
    type Outlet = TapOutlet;
    type Inlet = TapInlet;

    fn outlet(&self, _ring_size: u16) -> io::Result<TapOutlet> {
        TapOutlet::new(self.policy)
    }

    fn inlet(&self, setup: ReceiveSetup, _ring_size: u16) -> io::Result<TapInlet> {
        TapInlet::new(self.policy, self.shared.mtu.load(Ordering::Relaxed), setup)
    }

    #[inline]
    fn queue(&mut self) -> &mut PortIo {
        &mut self.io
    }

    fn describe(&self) -> String {
        match self.looked_at {
            Some(_) => self.tap.describe_gone(&self.tap.state()),
            None => self.io.describe().to_owned(),
        }
    }

    fn changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    #[inline]
    fn renewed(&mut self) -> bool {
        let now = self.tap.successors();
        if self.successors == now {
            return false;
        }
        (self.successors, self.looked_at) = (now, None);
        true
    }

    fn sleep_at_most(&mut self) -> Option<Duration> {
        if self.io.take_lost() {
            self.lose();
        }
        if self.looked_at?.elapsed() >= LOOK {
            self.looked_at = Some(Instant::now());
            // One looks for all.
            if self.pair == 0 {
                self.tap.look(false);
                self.changed = true;
            }
        }
        Some(LOOK)
    }

    fn port(&self) -> Option<BorrowedFd<'_>> {
        Some(self.io.port())
    }
}
