//! Frames by `XdpSender`: in zero-copy mode the card reads them where they were built, in the
//! moment at which they leave.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use zerowire::send::frame::{FrameError, FrameSender};
use zerowire::xdp::{Mode, SenderOptions, XdpSender};
use zerowire_vmtest::xdp::{CHANGED_FROM, HELD, LENGTHS, READ, sent};

use super::PATIENCE;

/// For frames that are not held: then they are back, or QEMU has no room for more.
const NOT_HELD: Duration = Duration::from_secs(3);

/// Frames in a batch, and batches by which the wire is filled, at most.
const BATCH: u32 = 32;
const BATCHES: u32 = 64;

/// `send MODE INTERFACE` sends frames of all lengths. When the wire's end reads no more, it sends
/// until some are held back, and then [`HELD`] more. It changes the bytes of those after the kernel
/// has taken them.
pub fn run(mode: &str, interface: &str) -> Result<String> {
    let mode = match mode {
        "copy" => Mode::Copy,
        "zerocopy" => Mode::ZeroCopy,
        _ => bail!("mode '{mode}': copy or zerocopy"),
    };
    let options = SenderOptions::new(interface).mode(mode).frames(256).ring(256);
    let mut sender = XdpSender::open(options)?;
    let mut n = 0;
    for len in LENGTHS {
        // Less than the card's queue takes.
        if n % BATCH == 0 {
            sender.drain(PATIENCE)?;
        }
        build(&mut sender, n, len)?;
        n += 1;
    }
    sender.drain(PATIENCE)?;
    let start = Instant::now();
    while !Path::new(READ).exists() {
        ensure!(start.elapsed() < PATIENCE, "the wire's end never reads {n} frames");
        std::thread::sleep(Duration::from_millis(20));
    }

    let mut batches = 0;
    loop {
        ensure!(batches < BATCHES, "nothing is held after {n} frames");
        batches += 1;
        for _ in 0..BATCH {
            build(&mut sender, n, 1514)?;
            n += 1;
        }
        if is_held(&mut sender)? {
            break;
        }
    }
    let first = n;
    let mut places = Vec::new();
    for _ in 0..HELD {
        places.push(build(&mut sender, n, 1514)?);
        n += 1;
    }
    ensure!(is_held(&mut sender)?, "the frames behind those that are held are not");
    // The memory is this process's, but not this program's to write to: frames are on their way
    // there.
    let memory = OpenOptions::new().write(true).open("/proc/self/mem").context("/proc/self/mem")?;
    places.iter().try_for_each(|place| change(&memory, *place))?;
    println!("changed");
    sender.drain(PATIENCE)?;

    let statistics = sender.statistics()?;
    let totals = sender.counters().snapshot();
    Ok(json!({
        "path": sender.path(), "zero_copy": sender.zero_copy(), "frames": n, "first_changed": first, "totals": totals,
        "outstanding": sender.outstanding(), "kernel": format!("{statistics:?}"),
    })
    .to_string())
}

/// Builds frame `n`; returns where.
fn build(sender: &mut XdpSender, n: u32, len: usize) -> Result<u64> {
    let mut place = 0;
    let frame = sent(n, len);
    let taken = sender.push(len, &mut |to| {
        place = to.as_ptr() as u64;
        to.copy_from_slice(&frame);
    })?;
    ensure!(taken, "no room for frame {n}");
    Ok(place)
}

fn change(memory: &File, place: u64) -> Result<()> {
    let new = [0xee; 1514 - CHANGED_FROM];
    memory.write_all_at(&new, place + CHANGED_FROM as u64).context("change a frame")
}

/// Hands over what was built. Whether frames stay out, all of which the kernel has taken.
fn is_held(sender: &mut XdpSender) -> Result<bool> {
    match sender.drain(NOT_HELD) {
        Ok(()) => Ok(false),
        Err(FrameError::Stuck { unsent: 0, .. }) => Ok(true),
        Err(e) => Err(e.into()),
    }
}
