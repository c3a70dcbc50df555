//! The guest that drives a vsock back end, run natively on the driver's CPU.
//!
//! Payload to send is written once, before anything is measured. Payload that arrives is counted
//! and never read, so that the driver's CPU doesn't warm it for the back end.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use zerowire_guest::VhostUser;
use zerowire_guest::vsock::{
    ConnId, Drain, MAX_PAYLOAD, PayloadPool, SocketType, StackOptions, VsockDriver, VsockOptions, VsockStack,
};

use super::case::{CREDIT, QUEUE_SIZE, RX_BUFFER};
use super::host::sum_of;
use crate::guest::{STALL_LIMIT, filled_memory};

/// Memory of the guest beside payload: rings, headers.
const RING_MEMORY: usize = 2 << 20;
/// Buffers of 64 KiB for what is sent otherwise than from the pool.
const TX_SLOTS: usize = 4;
/// The longest sleep of a guest that waits for interrupts.
const NAP: Duration = Duration::from_millis(100);
/// Turns without work before a polling guest gives its CPU to the host's program.
const PATIENCE: u32 = 4;

/// How the guest's memory and credit are.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Bytes of payload to send from; 0: nothing is sent from a pool.
    pub pool_bytes: usize,
    /// Receive buffers in all; 0: as many as the queue holds.
    pub rx_buffers: usize,
    /// Bytes of a receive buffer, header included.
    pub rx_buffer_len: u32,
    /// Credit that connections give.
    pub credit: u32,
    /// Whether it sleeps until an interrupt when there is nothing to do; else it polls.
    pub sleeps: bool,
}

impl Default for Setup {
    /// A guest that polls, sends from no pool and has a Linux guest's receive buffers.
    fn default() -> Self {
        Self { pool_bytes: 0, rx_buffers: 0, rx_buffer_len: RX_BUFFER, credit: CREDIT, sleeps: false }
    }
}

/// A connected guest.
pub struct VsockGuest {
    stack: VsockStack,
    pool: Option<PayloadPool>,
    sleeps: bool,
    idle_turns: u32,
    // The last to go: its end tells the back end that the guest is gone.
    _driver: VsockDriver<VhostUser>,
}

impl VsockGuest {
    /// Connects to the back end at `socket`.
    pub fn connect(socket: &Path, setup: &Setup) -> Result<Self> {
        let buffers = setup.rx_buffers.max(usize::from(QUEUE_SIZE)) * setup.rx_buffer_len as usize;
        let total = setup.pool_bytes + buffers + TX_SLOTS * MAX_PAYLOAD + RING_MEMORY;
        let memory = filled_memory(total)?;
        let transport = VhostUser::connect(socket, STALL_LIMIT)?;
        let options = VsockOptions {
            queue_size: QUEUE_SIZE,
            rx_buffer_len: setup.rx_buffer_len,
            rx_buffers: setup.rx_buffers,
            tx_slots: TX_SLOTS,
            ..VsockOptions::default()
        };
        let (driver, queues) = VsockDriver::start(transport, &memory, &options)?;
        let stack =
            VsockStack::new(queues, StackOptions { buf_alloc: setup.credit, ..StackOptions::default() });
        let pool = match setup.pool_bytes {
            0 => None,
            bytes => Some(PayloadPool::new(&memory, bytes, None)?),
        };
        Ok(Self { stack, pool, sleeps: setup.sleeps, idle_turns: 0, _driver: driver })
    }

    /// The connections.
    pub fn stack(&mut self) -> &mut VsockStack {
        &mut self.stack
    }

    /// What the guest sends from.
    pub fn pool(&self) -> Result<&PayloadPool> {
        self.pool.as_ref().context("the guest has nothing to send")
    }

    /// Sum of the first `bytes` bytes that the guest sends from its pool.
    pub fn pool_sum(&self, bytes: u64) -> Result<u64> {
        Ok(sum_of(&self.pool()?.to_vec(), bytes))
    }

    /// A connection to a port of the host, granted.
    pub fn open(&mut self, cid: u64, port: u32, socket: SocketType) -> Result<ConnId> {
        let conn = self.stack.connect(cid, port, socket)?;
        if !self.stack.wait_connected(conn, STALL_LIMIT)? {
            bail!("the guest's connection to port {port} is refused");
        }
        Ok(conn)
    }

    /// Makes a turn. When there was nothing to do it sleeps until an interrupt, or, if this guest
    /// polls, gives the CPU to whoever wants it. `worked`: something was done before already.
    pub fn turn(&mut self, worked: bool) -> Result<usize> {
        if self.sleeps && !worked {
            return Ok(self.stack.turn(NAP)?);
        }
        let count = self.stack.turn(Duration::ZERO)?;
        if count > 0 || worked {
            self.idle_turns = 0;
        } else {
            self.idle_turns += 1;
            if self.idle_turns >= PATIENCE {
                // The host's program runs on this CPU as well.
                std::thread::yield_now();
            }
        }
        Ok(count)
    }

    /// Sends as many packets of `conn` as credit and room allow, `left` bytes at most: whole writes
    /// of `write_len`, or what is left of them. Returns the bytes sent.
    pub fn push(&mut self, conn: ConnId, write_len: usize, left: usize, most: usize) -> Result<usize> {
        let pool = self.pool.as_ref().context("the guest has nothing to send")?;
        let before = self.stack.counters().payload_sent;
        // A packet carries at most this many bytes, so these packets never carry more than what is
        // left.
        let packets = (left / write_len.min(MAX_PAYLOAD)).clamp(1, most);
        self.stack.send_from_pool(conn, pool, write_len, packets)?;
        Ok((self.stack.counters().payload_sent - before) as usize)
    }

    /// Sends `bytes` bytes, whole writes of `write_len`, and waits until `done`.
    pub fn send(
        &mut self,
        conn: ConnId,
        write_len: usize,
        bytes: usize,
        done: impl Fn() -> bool,
    ) -> Result<()> {
        let mut watch = Watch::new("guest -> host", bytes);
        let mut sent = 0;
        while sent < bytes || !done() {
            let count = match bytes - sent {
                0 => 0,
                left => self.push(conn, write_len, left, usize::from(QUEUE_SIZE))?,
            };
            sent += count;
            // A sleep ends with an interrupt, and none comes when the program is done.
            let last = sent == bytes;
            if last && self.stack.turn(Duration::ZERO)? == 0 {
                std::thread::yield_now();
            } else if !last {
                self.turn(count > 0)?;
            }
            watch.look(sent)?;
        }
        self.stack.flush(STALL_LIMIT).context("packets that were sent don't come back")?;
        Ok(())
    }

    /// Counts what arrives from now on; with `check` also sums it up.
    pub fn count(&mut self, conn: ConnId, check: bool) -> Result<()> {
        Ok(self.stack.drain_payload(conn, if check { Drain::Sum } else { Drain::Count })?)
    }

    /// Waits until `bytes` bytes in all have arrived since the connection began.
    pub fn receive(&mut self, conn: ConnId, bytes: u64) -> Result<()> {
        let mut watch = Watch::new("host -> guest", bytes as usize);
        loop {
            let got = self.stack.drained(conn).bytes;
            if got >= bytes {
                if got > bytes {
                    bail!("{got} bytes arrived where {bytes} were sent");
                }
                return Ok(());
            }
            self.turn(false)?;
            watch.look(got as usize)?;
        }
    }
}

/// Watches that bytes move.
pub struct Watch {
    what: &'static str,
    total: usize,
    last: (usize, Instant),
    looks: u32,
}

impl Watch {
    /// Watches `what` move `total` bytes.
    pub fn new(what: &'static str, total: usize) -> Self {
        Self { what, total, last: (0, Instant::now()), looks: 0 }
    }

    /// Fails when `done` has not changed for [`STALL_LIMIT`].
    pub fn look(&mut self, done: usize) -> Result<()> {
        self.looks = self.looks.wrapping_add(1);
        if done != self.last.0 {
            // Reading the clock each time would be much of the loop.
            if self.looks.is_multiple_of(64) {
                self.last = (done, Instant::now());
            }
        } else if self.last.1.elapsed() > STALL_LIMIT {
            let (what, total) = (self.what, self.total);
            bail!("{what}: nothing moved after {done} of {total} bytes for {STALL_LIMIT:?}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_stops_is_noticed() {
        let mut watch = Watch::new("guest -> host", 10);
        watch.look(0).unwrap();
        watch.last.1 -= STALL_LIMIT * 2;
        assert!(watch.look(0).unwrap_err().to_string().contains("0 of 10"));
    }
}
