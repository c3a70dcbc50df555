//! `zerowire replay --port xdp` on a card with zero-copy mode: the frames of a capture as they
//! leave, and what the summary says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zerowire_vmtest::backend;
use zerowire_vmtest::xdp::{CAPTURE, LENGTHS, sent};

use super::Card;
use crate::checks::vsock::setup::together;

/// For the program, which sends some thousand frames.
const RUN: Duration = Duration::from_secs(60);
/// For what was on its way when it ended.
const REST: Duration = Duration::from_secs(1);

/// What the summary calls the mode.
const ZERO_COPY: &str = "zero-copy mode (the interface reads the frames in place)";

/// A capture that the card's memory holds, sent twice from there; and one that is read while it is
/// sent.
pub fn capture(card: &mut Card) -> Result<String> {
    // It is in the guest if it is there.
    backend::static_program()?;
    card.guest.sh("zw-xdp capture")?;
    let frames = LENGTHS.count() as u64;
    let bytes: u64 = LENGTHS.map(|len| len as u64).sum();

    let text = replay(card, "--loop 2 --json -", 2)?;
    let said: Value = serde_json::from_str(text.trim()).with_context(|| text.clone())?;
    let path = said["path"].as_str().unwrap_or_default();
    ensure!(path.contains(ZERO_COPY) && said["source"] == "resident", "{said}");
    for (name, want) in [
        ("packets", frames),
        ("frames_a_pass", frames),
        ("passes", 2),
        ("frames", 2 * frames),
        ("bytes", 2 * bytes),
        ("frames_handed_over", 2 * frames),
        ("frames_not_back", 0),
        ("frames_refused", 0),
    ] {
        ensure!(said[name] == want, "{name} is not {want}: {said}");
    }
    let ledger = &said["ledger"];
    ensure!(ledger["zero_copied_frames"] == 2 * frames && ledger["zero_copied_bytes"] == 2 * bytes, "{said}");
    // Frames that it sends of such memory virtio-net does not count.
    ensure!(said["interface_counted"]["tx_dropped"] == 0, "{said}");

    // The card reads them in place all the same; the program has put them there.
    // The summary is broken into lines for a terminal.
    let text = replay(card, "--max-memory 1K", 1)?.split_whitespace().collect::<Vec<_>>().join(" ");
    let ledger = format!("ledger: 0 bytes zero-copied, {bytes} copied: ");
    for words in [&format!("{frames} frames, {bytes} bytes ("), ZERO_COPY, "streamed: ", &ledger] {
        ensure!(text.contains(words), "no '{words}' in {text}");
    }
    Ok(format!("replay: 2 × {frames} frames from the card's memory, {frames} copied there"))
}

/// Runs it at top speed in the guest, and compares every frame that leaves with that of the
/// capture. Returns what it prints.
fn replay(card: &mut Card, options: &str, passes: usize) -> Result<String> {
    let log = "/tmp/replay.log";
    let line = format!("zerowire replay -i {} --port xdp --topspeed {options} {CAPTURE}", card.interface);
    let done = AtomicBool::new(false);
    let Card { guest, wire, .. } = card;
    let run = || {
        let ran = guest.run(&format!("{line} 2>{log}"), RUN);
        done.store(true, Ordering::Relaxed);
        let ran = ran?;
        ensure!(ran.status == 0, "status {}: {}{}", ran.status, guest.sh(&format!("cat {log}"))?, ran.text);
        Ok(ran.text)
    };
    let all = (0..passes).flat_map(|_| (0..).zip(LENGTHS)).enumerate();
    let compare = || {
        let mut all = all.map(|(at, (n, len))| (at, sent(n, len)));
        loop {
            let is_last = done.load(Ordering::Relaxed);
            match (wire.next_sent(REST)?, is_last) {
                (Some((n, frame)), _) => {
                    let (at, want) = all.next().with_context(|| format!("frame {n} of one pass too many"))?;
                    ensure!(frame == want, "frame {at} came with the number {n}, {} bytes", frame.len());
                }
                (None, true) => break,
                (None, false) => {}
            }
        }
        let missing = all.count();
        ensure!(missing == 0, "the last {missing} frames never came");
        Ok(())
    };
    let ran = together(compare, run).with_context(|| line.clone());
    ran.map(|(text, ())| text)
}
