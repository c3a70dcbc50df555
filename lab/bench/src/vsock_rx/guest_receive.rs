//! The receiving program on the guest's side, above a driver in user space. It reads payload in the
//! buffers where the device wrote it.
//!
//! The copying mode of this driver makes the one copy that a guest's kernel makes: out of the
//! device's buffer into the program's. It makes none of a kernel's system calls.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use zerowire_guest::GuestMemory;
use zerowire_guest::pci::{self, PciDevice, PciOptions};
use zerowire_guest::vsock::{
    ConnId, ConnState, Dequeued, SHUTDOWN_SEND, SocketType, StackOptions, VsockDriver, VsockOptions,
    VsockStack,
};

use super::options::{ClientOptions, ReceiveMode};
use super::output::ClientOutput;
use super::tally::{Clock, Tally, process_time};
use crate::guest::STALL_LIMIT;
use crate::vsock::case::{QUEUE_SIZE, RX_BUFFER};

/// The longest sleep at a time.
const NAP: Duration = Duration::from_millis(100);
/// Bytes of the pages that a driver in a guest has its memory in.
const HUGE_PAGE: usize = 2 << 20;
/// Buffers for what is sent: this side only sends control packets.
const TX_SLOTS: usize = 4;
/// Turns without news before a polling program gives its CPU to whoever wants it.
const PATIENCE: u32 = 4;

/// Receives until the end on a connection that was opened for receiving in place.
///
/// A dequeue takes what has arrived, at least as many bytes as the low-water mark has.
pub fn receive(
    stack: &mut VsockStack,
    conn: ConnId,
    options: &ClientOptions,
    clock: Clock,
) -> Result<ClientOutput> {
    let mut buffer =
        Vec::with_capacity(if options.mode == ReceiveMode::Copy { 2 * options.buffer_bytes() } else { 0 });
    let mut waiter = Waiter { polls: options.mode == ReceiveMode::Polling, idle: 0, last: Instant::now() };
    while stack.readable(conn) == 0 && !over(stack, conn) {
        waiter.turn(stack)?;
    }
    let before = stack.in_place_counters();
    let mut tally = Tally::begin_with(clock, options)?;
    loop {
        if stack.readable(conn) < options.lowat() as usize && !over(stack, conn) {
            tally.wake_ups += u64::from(waiter.turn(stack)?);
            continue;
        }
        let begin = Instant::now();
        let Dequeued::Packets(lease) = stack.dequeue(conn)? else { break };
        waiter.idle = 0;
        if options.mode == ReceiveMode::Copy {
            buffer.clear();
            lease.append_to(&mut buffer);
            drop(lease);
            let dequeued = Instant::now();
            tally.look(&buffer);
            tally.dequeue += dequeued - begin;
            tally.touch += dequeued.elapsed();
        } else {
            let dequeued = Instant::now();
            for packet in lease.packets() {
                if options.copy_out || options.check {
                    let mut bytes = vec![0; packet.len()];
                    packet.read(0, &mut bytes);
                    tally.look(&bytes);
                } else {
                    tally.bytes += packet.len() as u64;
                    std::hint::black_box(packet.touch());
                }
            }
            let looked = Instant::now();
            drop(lease);
            tally.dequeue += (dequeued - begin) + looked.elapsed();
            tally.touch += looked - dequeued;
        }
        tally.dequeues += 1;
    }
    if options.mode != ReceiveMode::Copy {
        tally.direct_bytes = stack.in_place_counters().in_place_bytes - before.in_place_bytes;
    }
    Ok(tally.end(options.mode, 0, options.buffer_bytes())?)
}

/// Whether no more will come.
fn over(stack: &VsockStack, conn: ConnId) -> bool {
    stack.state(conn) != ConnState::Established || stack.peer_shutdown(conn) & SHUTDOWN_SEND != 0
}

struct Waiter {
    polls: bool,
    idle: u32,
    last: Instant,
}

impl Waiter {
    /// Makes a turn; true if it slept.
    fn turn(&mut self, stack: &mut VsockStack) -> Result<bool> {
        // A turn that finds something doesn't sleep.
        if stack.turn(Duration::ZERO)? > 0 {
            self.idle = 0;
            return Ok(false);
        }
        self.idle += 1;
        if self.idle == 1 {
            self.last = Instant::now();
        } else if self.idle.is_multiple_of(PATIENCE) && self.last.elapsed() > STALL_LIMIT {
            bail!("nothing arrived for {STALL_LIMIT:?}");
        }
        if self.polls {
            if self.idle.is_multiple_of(PATIENCE) {
                std::thread::yield_now();
            }
            return Ok(false);
        }
        stack.turn(NAP)?;
        Ok(true)
    }
}

/// Receives on a vsock device of this guest that no kernel driver has, at this address on the PCI
/// bus, or the only one.
pub fn on_device(address: Option<&str>, options: &ClientOptions) -> Result<ClientOutput> {
    let address = address.map(str::parse).transpose().context("--device")?;
    let device = PciDevice::open(pci::VSOCK, &PciOptions { address, ..PciOptions::default() }).with_context(|| {
        format!(
            "-z {} in a guest needs root and a vsock device that the kernel does not use (on the host name --uds PATH; see \
             docs/vsock-rx.md)",
            options.mode.letter()
        )
    })?;
    let rx_buffer_len = rx_buffer_for(options.buffer_bytes());
    // Rings, transmit buffers, and what alignment takes.
    let pages = 4 + (usize::from(QUEUE_SIZE) * (rx_buffer_len as usize + 64)).div_ceil(HUGE_PAGE);
    let memory = GuestMemory::physical(pages).with_context(|| {
        format!("{pages} huge pages are needed: echo {pages} > /proc/sys/vm/nr_hugepages")
    })?;
    let wanted = VsockOptions {
        queue_size: QUEUE_SIZE,
        rx_buffer_len,
        rx_align_payload: true,
        tx_slots: TX_SLOTS,
        ..VsockOptions::default()
    };
    let (_driver, queues) = VsockDriver::start(device, &memory, &wanted)?;
    let least = StackOptions::default().buf_alloc.max(2 * options.buffer_bytes() as u32);
    let credit = if options.credit == 0 { least } else { options.credit };
    let mut stack = VsockStack::new(queues, StackOptions { buf_alloc: credit, ..StackOptions::default() });
    let conn = stack.connect_in_place(options.cid.into(), options.port, SocketType::Stream)?;
    if !stack.wait_connected(conn, STALL_LIMIT)? {
        bail!(
            "CID {}, port {} refuses: does the server listen, with the same port?",
            options.cid,
            options.port
        );
    }
    let output = receive(&mut stack, conn, options, process_time)?;
    stack.close(conn)?;
    stack.wait_closed(conn, STALL_LIMIT)?;
    Ok(output)
}

/// Bytes of the receive buffers for dequeues of `len` bytes: a quarter of the queue holds one.
pub fn rx_buffer_for(len: usize) -> u32 {
    (len / 32).clamp(RX_BUFFER as usize, 65_536) as u32
}
