//! The plain packet socket: the kernel copies each frame, many in one sendmmsg(2).

use std::time::Duration;

use zerowire::ledger::Totals;
use zerowire::packet::{OpenError, PacketOptions, PacketSocket};
use zerowire::send::frame::{FrameError, FrameSender as _};

use super::super::store::ReplayFrame;
use super::{ReplayPort, sends_by};

/// Frames of a call at most. Few, so that they are in the CPU's cache when the kernel copies them.
const SLOTS: usize = 64;

/// Frames through a packet socket.
pub struct SocketPort(PacketSocket);

impl SocketPort {
    /// Opens it.
    pub fn open(interface: &str, options: &PacketOptions) -> Result<Self, OpenError> {
        PacketSocket::open(interface, &options.clone().slots(SLOTS)).map(Self)
    }
}

impl ReplayPort for SocketPort {
    sends_by!(0);

    fn push(&mut self, frame: &ReplayFrame<'_>) -> Result<bool, FrameError> {
        self.0.push_offload(&frame.header, frame.len, &mut |to| to.copy_from_slice(frame.bytes))
    }

    fn wait(&mut self, timeout: Duration) -> Result<bool, FrameError> {
        self.0.wait(timeout)
    }

    fn totals(&self) -> Totals {
        self.0.counters().snapshot()
    }
}
