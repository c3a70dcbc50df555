//! The modes of an xdp port: huge pages in zero-copy mode, huge and small ones in mode auto, and
//! copy mode.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zerowire_vmtest::guest::COMMAND;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::xdp::frame;

use super::{Card, check_uncopied};

/// Lengths of the frames, bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 60..=1514;

/// Frames of every length go there and come back in both modes, and what the statistics say. Mode
/// auto then does what one of them does: there it is one length in 13.
pub fn zero_copy(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    let interface = card.interface.clone();
    let mut text = Vec::new();
    for (mode, pages, word, step) in [
        ("copy", "huge", "copy mode", 1),
        ("zerocopy", "huge", ", zero copy", 1),
        ("auto", "huge", ", zero copy", 13),
        ("auto", "small", "no zero copy: the guest's memory lies on pages of 4 KiB", 13),
    ] {
        let lengths = LENGTHS.step_by(step);
        let what = format!("mode {mode}, {pages} pages");
        let vm = format!("own {mode} {interface} {pages}");
        let said = card.with_vms(&[vm], |card| {
            lengths
                .clone()
                .map(|len| card.wire.round_trip(&frame(len as u32, len)))
                .try_for_each(|r| r.map(drop))
        });
        let said: Value = serde_json::from_str(&said.with_context(|| what.clone())?[0])?;
        let path = said["path"].as_str().unwrap_or_default();
        ensure!(path.contains(word) && !path.contains("not bound"), "{what}: {path}");
        let figures = check_uncopied(&said, lengths.count() as u64).with_context(|| what.clone())?;
        text.push(format!("{mode} {pages}: {figures}"));
    }
    let refused = card.guest.run(&format!("zw-xdp own zerocopy {interface} small"), COMMAND)?;
    ensure!(
        refused.status != 0 && refused.text.contains("pages of 4 KiB"),
        "zero copy on small pages: {}",
        refused.text
    );
    Ok(format!("frames not copied in user space: {}", text.join("; ")))
}

/// An MTU of the card's interface, and the longest frame with it, a VLAN tag counted.
const SMALL_MTU: usize = 1000;
const SHORT: usize = SMALL_MTU + 18;

/// The interface's MTU becomes smaller and larger again while a VM runs. Frames that are too long
/// are dropped and counted; the others go on. Of each there are more than there are buffers.
pub fn mtu(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    let interface = card.interface.clone();
    let mut text = Vec::new();
    for (mode, longest) in [("copy", SHORT), ("zerocopy", SHORT.next_multiple_of(128))] {
        let vm = format!("own {mode} {interface} huge");
        let said = card.with_vms(&[vm], |card| {
            for (round, long) in (0..).zip([longest + 1, 1514]) {
                let n = 1000 * round;
                card.wire.round_trip(&frame(n, 1514))?;
                card.guest.sh(&format!("ip link set {interface} mtu {SMALL_MTU}"))?;
                for i in 0..300 {
                    card.wire.round_trip(&frame(n + 1 + i, 60 + i as usize * (longest - 60) / 299))?;
                }
                let came = card.wire.comes_back(&frame(n + 400, long))?;
                ensure!(!came, "a frame of {long} bytes came back with an MTU of {SMALL_MTU}");
                card.guest.sh(&format!("ip link set {interface} mtu 1500"))?;
                for i in 0..300 {
                    card.wire.round_trip(&frame(n + 500 + i, 1514 - i as usize))?;
                }
            }
            Ok(())
        });
        let said: Value = serde_json::from_str(&said.with_context(|| mode.to_owned())?[0])?;
        let figures = check_uncopied(&said, 1200).with_context(|| mode.to_owned())?;
        let dropped = &said["transmit"]["dropped_frames"];
        let long = dropped["too_long"].as_u64().unwrap_or(0);
        ensure!(
            long > 0 && dropped.as_object().is_some_and(|all| all.len() == 1),
            "{mode}: dropped {dropped}"
        );
        text.push(format!("{mode}: {figures}, {long} too long"));
    }
    Ok(text.join("; "))
}
