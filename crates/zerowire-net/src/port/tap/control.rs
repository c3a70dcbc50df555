//! The tap: one queue of it a worker.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{KERNEL_COPIES, Tap, TapInlet, TapOutlet};
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
    tap: Tap,
    policy: Policy,
}

impl TapPort {
    pub(super) fn of(tap: Tap, policy: Policy) -> Self {
        Self { tap, policy }
    }
}

impl Port for TapPort {
    fn pairs(&self) -> usize {
        self.tap.pairs()
    }

    fn interface(&self) -> String {
        self.tap.name().to_owned()
    }

    fn link_state(&self) -> LinkState {
        match self.tap.flags_by_keeper() {
            None => LinkState::by_name(self.tap.name()),
            Some(flags) => flags.map_or(LinkState::Gone, LinkState::of_flags),
        }
    }

    fn queue_hint(&self) -> &'static str {
        "give --port tap:NAME,queues=N as many queue pairs as the VMM uses"
    }

    fn offloads(&self) -> Offloads {
        self.tap.offloads()
    }

    fn mtu(&self) -> usize {
        self.tap.mtu()
    }

    fn resume_features(&self, acked: u64) -> Result<(), String> {
        self.tap.set_offloads(toward_guest(acked)).map_err(|e| e.to_string())?;
        self.tap.set_header_len(header_len(acked)).map_err(|e| e.to_string())
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

    fn kernel_copies(&self) -> &'static str {
        KERNEL_COPIES
    }

    fn spawn(&self, setup: WorkerSetup) -> io::Result<WorkerHandle> {
        let (queue, policy, shared) = (self.tap.queue(setup.pair)?, self.policy, setup.shared.clone());
        WorkerHandle::spawn(setup, move || Ok(TapPath { io: PortIo::new(queue), policy, shared }))
    }
}

/// Frames go to one queue of a tap, and nothing is lent to the kernel between turns.
struct TapPath {
    io: PortIo,
    policy: Policy,
    /// Has the MTU for rings that start.
    shared: Arc<Shared>,
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
        self.io.describe().to_owned()
    }

    fn port(&self) -> Option<BorrowedFd<'_>> {
        Some(self.io.port())
    }
}
