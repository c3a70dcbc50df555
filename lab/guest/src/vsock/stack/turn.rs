//! Turns: take what came, give what waits, and sleep when there is neither.
//! And calls that make turns until something is there, for tests and small
//! programs.

use std::time::{Duration, Instant};

use super::{ConnId, ConnState, Received, SocketType, VsockStack};
use crate::GuestError;
use crate::queue::sleep;
use crate::vsock::VsockQueues;

/// Packets that may wait for room in the transmit queue. With more, nothing
/// is received, so that a device that floods makes itself wait.
const MOST_WAITING: usize = 1024;
/// Packets received in one turn.
const BUDGET: usize = 256;
/// The longest single sleep.
const NAP: Duration = Duration::from_millis(200);

impl VsockStack {
    /// Makes a turn: received packets are handled, packets that wait go out,
    /// and the device sees both. When there is nothing to do it sleeps up to
    /// `timeout`, once. Returns how many packets came or were given back.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRule`] for packets that no sound device passes on, and when the
    /// device reports an error of a queue. What a peer does wrong on its connection resets that
    /// connection alone. [`GuestError::DeviceBrokeRing`]; [`GuestError::Io`].
    pub fn turn(&mut self, timeout: Duration) -> Result<usize, GuestError> {
        let count = self.work()?;
        if count > 0 || timeout.is_zero() {
            return Ok(count);
        }
        let for_room = self.core.output.wants_room || !self.core.output.packets.is_empty();
        let VsockQueues { rx, tx, .. } = &mut self.queues;
        sleep(&mut [(&mut **rx, Some(1)), (&mut **tx, for_room.then_some(1))], timeout)?;
        self.work()
    }

    fn work(&mut self) -> Result<usize, GuestError> {
        let (core, VsockQueues { rx, tx, .. }) = (&mut self.core, &mut self.queues);
        let reaped = tx.reap()?;
        core.output.wants_room &= reaped == 0;
        core.take_returns(rx);
        let budget = BUDGET.min(MOST_WAITING.saturating_sub(core.output.packets.len()));
        let received = rx.try_harvest(budget, |packet| core.input(&packet))?;
        core.output.flush(tx)?;
        core.send_unsent(tx)?;
        rx.publish()?;
        tx.publish()?;
        Ok(reaped + received)
    }

    /// Makes turns until `step` returns something.
    ///
    /// # Errors
    /// [`GuestError::TimedOut`], naming `what`; those of `step` and of
    /// [`VsockStack::turn`].
    pub fn until<R>(
        &mut self,
        what: &'static str,
        timeout: Duration,
        mut step: impl FnMut(&mut VsockStack) -> Result<Option<R>, GuestError>,
    ) -> Result<R, GuestError> {
        let start = Instant::now();
        loop {
            if let Some(result) = step(self)? {
                return Ok(result);
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Err(GuestError::TimedOut { what, timeout });
            };
            self.turn(left.min(NAP))?;
        }
    }

    /// Waits for the answer to a request. True when it was granted (the
    /// connection may have ended since).
    pub fn wait_connected(&mut self, conn: ConnId, timeout: Duration) -> Result<bool, GuestError> {
        self.until("the answer to a connection request", timeout, |stack| {
            Ok(match stack.state(conn) {
                ConnState::Connecting => None,
                ConnState::Refused => Some(false),
                _ => Some(true),
            })
        })
    }

    /// Waits for a connection at `port`.
    pub fn accept_wait(&mut self, port: u32, timeout: Duration) -> Result<ConnId, GuestError> {
        self.until("a connection request", timeout, |stack| Ok(stack.accept(port)))
    }

    /// Sends all of `bytes`; of a SEQPACKET connection as one message.
    pub fn send_all(&mut self, conn: ConnId, bytes: &[u8], timeout: Duration) -> Result<(), GuestError> {
        let mut sent = 0;
        let message = self.core.sender(conn)? == SocketType::SeqPacket;
        self.until("room to send", timeout, |stack| {
            if message {
                return Ok(stack.send_message(conn, bytes, false)?.then_some(()));
            }
            sent += stack.send(conn, &bytes[sent..])?;
            Ok((sent == bytes.len()).then_some(()))
        })
    }

    /// Receives exactly `len` bytes of a STREAM connection.
    pub fn recv_exact(&mut self, conn: ConnId, len: usize, timeout: Duration) -> Result<Vec<u8>, GuestError> {
        let bytes = self.recv_most("the arrival of as many bytes", conn, len, timeout)?;
        if bytes.len() < len { Err(GuestError::NotConnected { state: self.state(conn) }) } else { Ok(bytes) }
    }

    /// Receives until the peer says that it sends no more.
    pub fn recv_to_end(&mut self, conn: ConnId, timeout: Duration) -> Result<Vec<u8>, GuestError> {
        self.recv_most("the end of the stream", conn, usize::MAX, timeout)
    }

    /// Receives `most` bytes, or fewer up to the end.
    fn recv_most(
        &mut self,
        what: &'static str,
        conn: ConnId,
        most: usize,
        timeout: Duration,
    ) -> Result<Vec<u8>, GuestError> {
        let mut bytes = Vec::new();
        self.until(what, timeout, |stack| {
            while bytes.len() < most {
                let left = most - bytes.len();
                match stack.recv_up_to(conn, &mut bytes, left)? {
                    Received::Data(_) | Received::Record(_) => {}
                    Received::Empty => return Ok(None),
                    Received::End => break,
                }
            }
            Ok(Some(()))
        })?;
        Ok(bytes)
    }

    /// Receives what is there, once something is: bytes, or one message of a
    /// SEQPACKET connection. None at the end.
    pub fn recv_message(&mut self, conn: ConnId, timeout: Duration) -> Result<Option<Vec<u8>>, GuestError> {
        let mut bytes = Vec::new();
        self.until("the arrival of a message", timeout, |stack| {
            Ok(match stack.recv(conn, &mut bytes)? {
                Received::Data(_) | Received::Record(_) => Some(true),
                Received::Empty => None,
                Received::End => Some(false),
            })
        })
        .map(|more| more.then_some(bytes))
    }

    /// Waits until a connection has ended, and returns how.
    pub fn wait_closed(&mut self, conn: ConnId, timeout: Duration) -> Result<ConnState, GuestError> {
        self.until("the end of the connection", timeout, |stack| {
            let state = stack.state(conn);
            Ok((!state.is_live()).then_some(state))
        })
    }

    /// Waits until the device has given back every packet sent.
    pub fn flush(&mut self, timeout: Duration) -> Result<(), GuestError> {
        self.until("the return of all packets", timeout, |stack| {
            stack.push_out()?;
            let output = &mut stack.core.output;
            let idle = output.packets.is_empty() && stack.queues.tx.in_flight() == 0;
            output.wants_room = !idle;
            Ok(idle.then_some(()))
        })
    }
}
