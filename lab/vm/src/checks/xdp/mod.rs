//! `--port xdp` on a driver with zero-copy mode: VMs inside a guest, on the guest's virtio-net
//! card.
//!
//! ```text
//!  guest: zw-xdp (VM) ── zerowire net ── AF_XDP ── virtio-net ── QEMU
//!  host:  this program ── datagrams or tap ── QEMU
//! ```
//! Or a program in the guest sends by itself ([`send`], [`replay`]).
//!
//! The card is QEMU's own: the driver's zero-copy mode resets single queues (VIRTIO_F_RING_RESET),
//! which QEMU doesn't pass on to vhost-user back ends.

pub mod alone;
mod card;
pub mod memlock;
pub mod modes;
pub mod program;
pub mod queues;
pub mod replay;
pub mod send;
mod wire;

pub use card::Card;

use anyhow::{Result, ensure};
use serde_json::Value;

/// Fails unless a VM's statistics say zero copy, and of at least `least` frames each way nearly all
/// went without a copy. Returns the figures in words.
pub fn check_zero_copy(vm: &Value, least: u64) -> Result<String> {
    let path = vm["path"].as_str().unwrap_or_default();
    ensure!(path.contains(", zero copy"), "not in zero-copy mode: {vm}");
    check_uncopied(vm, least)
}

/// The same in any mode.
pub fn check_uncopied(vm: &Value, least: u64) -> Result<String> {
    ensure!(vm["ring_errors"] == 0 && vm["connection_errors"] == 0, "errors: {vm}");
    let mut text = Vec::new();
    for way in ["transmit", "receive"] {
        let number = |name: &str| vm[way][name].as_u64().unwrap_or(0);
        let (frames, zero) = (number("frames"), number("zero_copied_frames"));
        ensure!(frames >= least, "{frames} frames, {way}: {vm}");
        // What crosses from one huge page to another goes by a copy.
        ensure!(zero * 100 >= frames * 90, "{zero} of {frames} frames not copied, {way}: {vm}");
        text.push(format!("{way} {zero} of {frames}"));
    }
    Ok(text.join(", "))
}
