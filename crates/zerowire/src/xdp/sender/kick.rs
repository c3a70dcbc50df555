//! Tells the kernel to send, and reads its answer (`__xsk_generic_xmit` and `xsk_sendmsg`,
//! net/xdp/xsk.c).

use rustix::io::Errno;

use super::XdpSender;
use crate::send::frame::FrameError;

/// Calls in a row that seem to do nothing before a flush leaves the rest to the next one. Kernels
/// before 6.17 say how far they are only now and then, so that one such call proves nothing.
const IDLE_CALLS: u32 = 3;

impl XdpSender {
    /// Publishes what was pushed, and calls the kernel as long as it asks for that and goes on;
    /// with `force` at least once.
    pub(super) fn kick(&mut self, force: bool) -> Result<(), FrameError> {
        let Some(ring) = self.socket.transmit() else { return Ok(()) };
        ring.publish();
        let mut waiting = ring.waiting();
        let (mut force, mut idle, mut dropped) = (force, 0, false);
        while force || (waiting > 0 && self.asks()) {
            force = false;
            let back = self.back;
            let answer = self.socket.wake_transmit();
            self.counters.system_calls.add(1);
            match answer.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
                Ok(()) => break,
                // In copy mode one call sends a budget of frames, 32 in old kernels.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => idle += 1,
                // A driver that is busy with something else; it took nothing.
                Err(Errno::BUSY) if self.socket.zero_copy() => idle += 1,
                Err(Errno::BUSY) => {
                    self.drops += 1;
                    dropped = true;
                    idle = 0;
                }
                Err(e) => return Err(self.stopped(e)),
            }
            // Full completion rings stop the kernel, too.
            self.collect();
            let now = self.waiting();
            if now < waiting || self.back > back {
                idle = 0;
            }
            waiting = now;
            if idle >= IDLE_CALLS {
                break;
            }
        }
        if dropped { self.after_drops() } else { Ok(()) }
    }

    fn asks(&mut self) -> bool {
        self.socket.transmit().is_some_and(|ring| ring.needs_wakeup())
    }

    fn waiting(&mut self) -> u32 {
        self.socket.transmit().map_or(0, |ring| ring.waiting())
    }

    /// The interface dropped frames: since its other side is down, since its MTU shrank, or since
    /// its queue is full. They are counted as refused; a lasting cause is an error.
    fn after_drops(&mut self) -> Result<(), FrameError> {
        self.read_mtu();
        match self.socket.up_and_running() {
            Ok((true, false)) => {
                let words =
                    "it has no carrier, and drops every frame: plug in the cable, or set its other side up";
                Err(self.system("sending", std::io::Error::other(words)))
            }
            _ => Ok(()),
        }
    }

    fn stopped(&mut self, error: Errno) -> FrameError {
        let interface = self.socket.interface().to_owned();
        match error {
            Errno::NETDOWN => FrameError::Down { interface, frames: self.unsent() },
            Errno::NXIO | Errno::NODEV => FrameError::Gone { interface, frames: self.take_back() },
            e => self.system("sendto(AF_XDP)", e.into()),
        }
    }

    /// The kernel let go of the interface and reads the ring no more: what it didn't take comes
    /// back here, and is counted as refused. What is in the interface's queues still comes over the
    /// completion ring. Returns how many frames.
    fn take_back(&mut self) -> usize {
        self.collect();
        let mut pieces = Vec::new();
        if let Some(ring) = self.socket.transmit() {
            ring.take_back(|piece| pieces.push(piece));
        }
        let mut frames = 0;
        for piece in pieces {
            if let Some(len) = self.piece_back(piece.address) {
                frames += 1;
                self.count(len, true);
            }
        }
        frames
    }
}
