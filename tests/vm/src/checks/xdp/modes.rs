//! The modes of an xdp port: huge pages in zero-copy mode, huge and small ones in mode auto, and copy mode.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use zerowire_vmtest::guest::COMMAND;
use zerowire_vmtest::runner::Env;
use zerowire_vmtest::xdp::frame;

use super::{Card, check_uncopied};

/// Lengths of the frames, bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 60..=1514;

/// Frames of every length go there and come back in each mode, and what the statistics say.
pub fn zero_copy(env: &Env<'_>) -> Result<String> {
    let mut card = Card::plug(env)?;
    let interface = card.interface.clone();
    let mut text = Vec::new();
    for (mode, pages, word) in [
        ("copy", "huge", "copy mode"),
        ("zerocopy", "huge", ", zero copy"),
        ("auto", "huge", ", zero copy"),
        ("auto", "small", "no zero copy: the guest's memory lies on pages of 4 KiB"),
    ] {
        let what = format!("mode {mode}, {pages} pages");
        let vm = format!("own {mode} {interface} {pages}");
        let said = card.with_vms(&[vm], |card| {
            LENGTHS.map(|len| card.wire.round_trip(&frame(len as u32, len))).try_for_each(|r| r.map(drop))
        });
        let said: Value = serde_json::from_str(&said.with_context(|| what.clone())?[0])?;
        let path = said["path"].as_str().unwrap_or_default();
        ensure!(path.contains(word) && !path.contains("not bound"), "{what}: {path}");
        let figures = check_uncopied(&said, LENGTHS.count() as u64).with_context(|| what.clone())?;
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
