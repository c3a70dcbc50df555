//! AF_XDP transmit by `XdpSender` on a card with zero-copy mode: which bytes it sends, and what the
//! ledger says. `zerowire replay` stands on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::vsock::remote::Background;
use zerowire_vmtest::xdp::{CHANGED_FROM, HELD, LENGTHS, READ, sent};

use super::{Card, replay};
use crate::checks::vsock::setup::together;

/// For the next frame of one length each.
const SOON: Duration = Duration::from_secs(60);
/// For what was on its way when the program ended.
const REST: Duration = Duration::from_secs(1);

/// `zw-xdp send` in the guest, in zero-copy mode and, as the counterpart, in copy mode. The wire's
/// end stops reading in the middle: QEMU then leaves frames in the card's queue, and bytes that are
/// changed there are what arrives, or not.
pub fn in_place(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    let mut said = Vec::new();
    for mode in ["zerocopy", "copy"] {
        said.push(one(&mut card, mode).with_context(|| format!("mode {mode}"))?);
    }
    said.push(replay::capture(&mut card).context("replay")?);
    Ok(said.join("; "))
}

fn one(card: &mut Card, mode: &str) -> Result<String> {
    card.guest.sh(&format!("rm -f {READ}"))?;
    let command = format!("zw-xdp send {mode} {}", card.interface);
    let job = Background::start_command(&mut card.guest, &command)?;
    for (n, len) in (0..).zip(LENGTHS) {
        let Some((got, frame)) = card.wire.next_sent(SOON)? else {
            let said = job.finish(&mut card.guest);
            bail!("frame {n} of {len} bytes never comes: {said:?}");
        };
        ensure!(got == n && frame == sent(n, len), "frame {got} of {} bytes in place of {n}", frame.len());
    }
    // Nobody reads now.
    card.guest.sh(&format!("touch {READ}"))?;
    job.wait_for(&mut card.guest, "changed")?;
    let done = AtomicBool::new(false);
    let mut next = LENGTHS.count() as u32;
    let Card { guest, wire, .. } = card;
    let collect = || {
        let mut rest = Vec::new();
        loop {
            let is_last = done.load(Ordering::Relaxed);
            match wire.next_sent(REST)? {
                Some((n, frame)) => {
                    ensure!(n == next, "frame {n} in place of {next}");
                    rest.push(frame);
                    next += 1;
                }
                None if is_last => return Ok(rest),
                None => {}
            }
        }
    };
    let end = || {
        let said = job.finish(guest);
        done.store(true, Ordering::Relaxed);
        said
    };
    let (said, rest) = together(collect, end)?;
    let said: Value = serde_json::from_str(&said)?;
    let number = |name: &str| said[name].as_u64().with_context(|| format!("no {name}: {said}"));
    let (frames, first) = (number("frames")?, number("first_changed")?);
    ensure!(u64::from(next) == frames, "{next} frames came: {said}");
    ensure!(first + u64::from(HELD) == frames && said["outstanding"] == 0, "{said}");
    let is_zero_copy = mode == "zerocopy";
    let changed_from = if is_zero_copy { first } else { u64::MAX };
    for (n, frame) in (LENGTHS.count() as u32..).zip(&rest) {
        let mut want = sent(n, 1514);
        if u64::from(n) >= changed_from {
            want[CHANGED_FROM..].fill(0xee);
        }
        ensure!(*frame == want, "frame {n}, of those that were changed the first is {first}: {frame:02x?}");
    }
    // The kernel's own word by XDP_OPTIONS.
    ensure!(said["zero_copy"] == is_zero_copy, "{said}");
    let bytes = (LENGTHS.sum::<usize>() + rest.len() * 1514) as u64;
    agrees(&said["totals"], is_zero_copy, frames, bytes).with_context(|| said.to_string())?;
    let zero = if is_zero_copy { bytes } else { 0 };
    Ok(format!("{mode}: {frames} frames, {HELD} changed on their way, {zero} bytes not copied"))
}

/// The ledger has these frames and bytes, all of them zero-copied or all copied by the kernel.
fn agrees(totals: &Value, is_zero_copy: bool, frames: u64, bytes: u64) -> Result<()> {
    let (zero, copied) = if is_zero_copy { ((frames, bytes), 0) } else { ((0, 0), bytes) };
    ensure!(totals["frames"] == frames && totals["bytes"] == bytes, "of {frames} frames, {bytes} bytes");
    let has = (&totals["zero_copied_frames"], &totals["zero_copied_bytes"]);
    ensure!(has == (&zero.0.into(), &zero.1.into()), "of {zero:?} zero-copied frames and bytes");
    let kernel = totals["copied_bytes"].get("kernel").and_then(Value::as_u64).unwrap_or(0);
    ensure!(kernel == copied, "{kernel} of {copied} bytes copied by the kernel");
    Ok(())
}
