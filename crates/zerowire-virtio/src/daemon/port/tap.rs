//! The tap: one queue of it a worker.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zerowire::ledger::{Counters, DropReason};
use zerowire_vhost_user::features as f;

use super::Port;
use crate::daemon::path::{Path, ReceiveSide, Side};
use crate::daemon::stats::Shared;
use crate::daemon::worker::{WorkerHandle, WorkerSetup};
use crate::host::HostRing;
use crate::io::PortIo;
use crate::memory::GuestMemory;
use crate::net::features::{header_len, toward_guest};
use crate::net::receive::{ReceiveContext, ReceiveSetup, ReceiveTurn};
use crate::net::tap::TapOutlet;
use crate::net::{Policy, Receive};
use crate::port::{Tap, TapError, TapOffloads, TapSpec};
use crate::ring::RingError;

/// A tap with what its workers need to know.
pub(in crate::daemon) struct TapPort {
    tap: Tap,
    policy: Policy,
}

impl TapPort {
    pub(super) fn open(spec: &TapSpec, policy: Policy) -> Result<Self, TapError> {
        Ok(Self { tap: Tap::open(spec)?, policy })
    }
}

impl Port for TapPort {
    fn pairs(&self) -> usize {
        self.tap.pairs()
    }

    fn interface(&self) -> String {
        self.tap.name().to_owned()
    }

    fn queue_hint(&self) -> &'static str {
        "give --port tap:NAME,queues=N as many queue pairs as the VMM uses"
    }

    fn offloads(&self) -> TapOffloads {
        self.tap.offloads()
    }

    fn mtu(&self) -> usize {
        self.tap.mtu()
    }

    fn set_features(&self, acked: u64) -> Result<(), String> {
        self.tap.set_offloads(toward_guest(acked)).map_err(|e| e.to_string())?;
        self.tap.set_header_len(header_len(acked)).map_err(|e| e.to_string())?;
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
        "one each way, between the frame and the tap's socket buffer (drivers/net/tun.c)"
    }

    fn spawn(&self, setup: WorkerSetup) -> io::Result<WorkerHandle> {
        let (queue, policy, shared) = (self.tap.queue(setup.pair)?, self.policy, setup.shared.clone());
        WorkerHandle::spawn(setup, move || Ok(TapPath { io: PortIo::new(queue), policy, shared }))
    }
}

/// Frames go to one queue of a tap, and nothing is lent to the kernel between turns.
pub(super) struct TapPath {
    io: PortIo,
    policy: Policy,
    /// Has the MTU for rings that start.
    shared: Arc<Shared>,
}

impl Path for TapPath {
    type Outlet = TapOutlet;
    type Receive = Receive;
    const POSTS_AHEAD: bool = false;

    fn outlet(&self, _ring_size: u16) -> io::Result<TapOutlet> {
        TapOutlet::new(self.policy)
    }

    #[inline]
    fn outlet_port(&mut self) -> &mut PortIo {
        &mut self.io
    }

    fn describe(&self) -> String {
        self.io.describe().to_owned()
    }

    fn port(&self) -> Option<BorrowedFd<'_>> {
        Some(self.io.port())
    }
}

impl Side<TapPath> for Receive {
    fn make(path: &mut TapPath, ring: HostRing) -> Result<Self, String> {
        let acked = ring.acked();
        let setup = ReceiveSetup {
            mergeable: acked & f::NET_MRG_RXBUF != 0,
            header_len: header_len(acked),
            mtu: path.shared.mtu.load(Ordering::Relaxed),
            mode: path.policy.mode,
            copybreak: path.policy.rx_copybreak_bytes,
        };
        let mut side = Self::new(ring, setup).map_err(|e| e.to_string())?;
        if acked & f::NET_GUEST_CSUM == 0 {
            side.clear_flags();
        }
        Ok(side)
    }

    fn host(&self) -> &HostRing {
        self.host()
    }

    fn host_mut(&mut self) -> &mut HostRing {
        self.host_mut()
    }

    fn into_host(self) -> HostRing {
        self.into_host()
    }

    fn begin(&mut self, _path: &mut TapPath, _memory: &GuestMemory) -> Result<(), String> {
        self.moved();
        Ok(())
    }

    fn release(&mut self, _path: &mut TapPath, _memory: &GuestMemory, counters: &Counters) {
        for _ in 0..self.release() {
            counters.dropped(DropReason::NoRoom);
        }
    }

    fn trim(&mut self) {
        self.trim();
    }
}

impl ReceiveSide<TapPath> for Receive {
    #[inline]
    fn run(
        &mut self,
        path: &mut TapPath,
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<ReceiveTurn, RingError> {
        self.run(&mut ReceiveContext { memory, io: &mut path.io, counters })
    }

    fn inject(&mut self, frame: &[u8], memory: &GuestMemory, counters: &Counters) -> Result<bool, RingError> {
        self.inject(frame, memory, counters)
    }
}
