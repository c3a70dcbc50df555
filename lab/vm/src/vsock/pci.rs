//! A vsock device that a program in the guest drives by itself, beside the kernel's.
//!
//! ```text
//! zw-vsock pci HOW listen PORT receive SEED WRITE BYTES
//! zw-vsock pci HOW connect CID PORT receive|send SEED WRITE BYTES
//! zw-vsock pci HOW give-back
//! ```
//! HOW is how it receives: `copy` (read a copy), `sleep` (in place, sleeping until there
//! is something), `spin` (in place, never sleeping) or `timer` (as `sleep`, without the
//! device's interrupt).
//! `receive` says how many bytes stayed in place and how many were copied because half
//! of the ring was held.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use zerowire_guest::GuestMemory;
use zerowire_guest::pci::{self, PciDevice, PciOptions};
use zerowire_guest::vsock::{
    ConnId, Dequeued, InPlaceCounters, POLL_NOTHING, Received, SHUTDOWN_SEND, SocketType, StackOptions,
    VsockDriver, VsockOptions, VsockStack,
};

use super::PATIENCE;
use super::job::{Load, send_by};
use super::pattern::Pattern;

/// Pages of 2 MiB: two for 128 receive buffers and the rings, one for what is sent, one
/// to spare.
pub const HUGE_PAGES: usize = 4;

/// Bytes that the host may send ahead.
const CREDIT: u32 = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Copy,
    Sleep,
    Spin,
    Timer,
}

/// Does what the words say; see the module. The text is what was received how.
///
/// # Errors
/// The device can't be used, or a byte is wrong.
pub fn run(words: &[String]) -> Result<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [how, rest @ ..] = &words[..] else { bail!("how?") };
    let how = match *how {
        "copy" => How::Copy,
        "sleep" => How::Sleep,
        "spin" => How::Spin,
        "timer" => How::Timer,
        other => bail!("'{other}' is none of copy, sleep, spin, timer"),
    };
    let options = PciOptions { interrupts: how != How::Timer, ..PciOptions::default() };
    let device = PciDevice::open(pci::VSOCK, &options)?;
    ensure!(device.has_interrupt() == options.interrupts, "{} has no interrupt", device.address());
    if rest == ["give-back"] {
        let address = device.address();
        device.give_back()?;
        return Ok(address.to_string());
    }
    let memory = GuestMemory::physical(HUGE_PAGES)?;
    let shape = VsockOptions { tx_slots: 16, rx_align_payload: true, ..VsockOptions::default() };
    let (_driver, queues) = VsockDriver::start(device, &memory, &shape)?;
    // Linux does not ask for credit either.
    let stack = StackOptions { buf_alloc: CREDIT, ask_credit: false, ..StackOptions::default() };
    let mut stack = VsockStack::new(queues, stack);
    let in_place = how != How::Copy;
    let (conn, rest) = match rest {
        ["listen", port, rest @ ..] => {
            let port = port.parse().context("a port")?;
            match in_place {
                true => stack.listen_in_place(port, SocketType::Stream),
                false => stack.listen(port, SocketType::Stream),
            }
            println!("listening");
            (stack.accept_wait(port, PATIENCE)?, rest)
        }
        ["connect", cid, port, rest @ ..] => {
            let (cid, port) = (cid.parse().context("a CID")?, port.parse().context("a port")?);
            let conn = match in_place {
                true => stack.connect_in_place(cid, port, SocketType::Stream)?,
                false => stack.connect(cid, port, SocketType::Stream)?,
            };
            ensure!(stack.wait_connected(conn, PATIENCE)?, "refused");
            (conn, rest)
        }
        other => bail!("unknown words {other:?}"),
    };
    let [job, seed, write_bytes, bytes] = rest else { bail!("a job and three numbers are needed: {rest:?}") };
    let load = Load { seed: seed.parse()?, bytes: bytes.parse()?, write_bytes: write_bytes.parse()? };
    match *job {
        "receive" => receive(&mut stack, conn, load, how)?,
        "send" => send(&mut stack, conn, load)?,
        other => bail!("'{other}' is neither receive nor send"),
    }
    stack.close(conn)?;
    stack.wait_closed(conn, PATIENCE)?;
    stack.flush(PATIENCE)?;
    let InPlaceCounters { in_place_bytes, held_bytes, .. } = stack.in_place_counters();
    Ok(format!("{in_place_bytes} {held_bytes}"))
}

/// Receives a load and the end behind it.
fn receive(stack: &mut VsockStack, conn: ConnId, load: Load, how: How) -> Result<()> {
    let pattern = Pattern::new(load.seed);
    let mut received = 0;
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let over = match how {
            How::Copy => match stack.recv(conn, &mut bytes)? {
                Received::End => true,
                Received::Empty => wait(stack, conn, how).map(|()| false)?,
                Received::Data(_) | Received::Record(_) => false,
            },
            How::Sleep | How::Spin | How::Timer => match stack.dequeue(conn)? {
                Dequeued::End => true,
                Dequeued::Empty => wait(stack, conn, how).map(|()| false)?,
                Dequeued::Packets(lease) => {
                    for packet in lease.packets() {
                        let aligned = packet.as_ptr().addr().is_multiple_of(64);
                        ensure!(aligned || !packet.is_in_place(), "payload at {:p}", packet.as_ptr());
                        packet.append_to(&mut bytes);
                    }
                    false
                }
            },
        };
        if let Some(place) = pattern.first_difference(received, &bytes) {
            bail!("byte {place} of {} is wrong ({} bytes at {received})", load.bytes, bytes.len());
        }
        received += bytes.len() as u64;
        if over {
            ensure!(received == load.bytes, "the end came after {received} of {} bytes", load.bytes);
            return Ok(());
        }
    }
}

/// Waits until there may be something. It sleeps longer than the stack's own calls do,
/// so that an interrupt which does not come is noticed.
fn wait(stack: &mut VsockStack, conn: ConnId, how: How) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let something = match how {
            How::Spin => stack.poll_value(conn)? != POLL_NOTHING,
            _ => stack.turn(PATIENCE)? > 0,
        };
        if something {
            return Ok(());
        }
    }
    bail!("nothing came for {PATIENCE:?}")
}

/// Sends a load and ends the stream.
fn send(stack: &mut VsockStack, conn: ConnId, load: Load) -> Result<()> {
    send_by(load, |bytes| Ok(stack.send_all(conn, bytes, PATIENCE)?))?;
    stack.shutdown(conn, SHUTDOWN_SEND)?;
    stack.flush(PATIENCE)?;
    // Not an end before the peer has it all.
    stack.until("the end of the host's data", PATIENCE, |stack| {
        Ok((stack.poll_value(conn)? != POLL_NOTHING).then_some(()))
    })?;
    Ok(())
}
