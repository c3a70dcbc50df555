//! Whether a device may be trusted to reach what the kernel promised it, and to let go of it.
//!
//! With an IOMMU that translates, the kernel maps each page of 4096 bytes by itself
//! (net/xdp/xsk_buff_pool.c, `xp_dma_map`). Neighbours in a huge page need not be neighbours for
//! the device. Chunks that cross from one page to another are then thrown away without a word.
//! Those of the fill ring are counted nowhere that a program could see: `rx_invalid_descs` is the
//! count of the receive ring, which has none. Those of the TX ring are counted as
//! `tx_invalid_descs`.

use std::path::{Path, PathBuf};

use zerowire_sys::netlink::Netdev;
use zerowire_sys::xdp::{Interface, Statistics};

/// What to do about it.
const REMEDY: &str = "boot with iommu=pt, or give mode=copy";

/// Whether the driver says that it has AF_XDP's zero-copy mode. It can't say so before Linux 6.3:
/// then it may have it.
pub fn driver_has_zero_copy(interface: &Interface) -> bool {
    let device = Netdev::open().and_then(|mut netdev| netdev.device(interface.index()));
    device.map_or(true, |d| d.has_xsk_zerocopy())
}

/// Why buffers that cross pages can't be had by the interface's device; None where nothing is known
/// against it.
pub fn translated(interface: &Interface) -> Option<String> {
    let device = interface.bus_address()?;
    let kind = domain_of(Path::new("/sys/bus/pci/devices"), &device)?;
    translates(&kind).then(|| {
        format!(
            "its device {device} is behind an IOMMU that translates addresses (domain type {kind}), so that neighbouring pages \
             need not be neighbours for it: {REMEDY}"
        )
    })
}

/// Whether in copy mode the kernel has its own copy of a frame once it has taken all of it from the
/// TX ring. It then reads the sender's memory no more (net/xdp/xsk.c, `xsk_build_skb`). Drivers
/// that take pages as they are differ (IFF_TX_SKB_NO_LINEAR, which no program can see). So this is
/// true only where the driver is known not to. Elsewhere a frame is sent when it is completed.
/// Drivers of NICs are not late with that, but frames on a veth lie in whatever queues are behind
/// it.
pub fn copies_at_once(interface: &Interface) -> bool {
    interface.driver().is_some_and(|driver| driver == "veth")
}

/// The type of the device's IOMMU domain (Documentation/ABI/testing/sysfs-kernel-iommu_groups);
/// None without an IOMMU.
fn domain_of(devices: &Path, device: &str) -> Option<String> {
    if device.is_empty() || device.contains('/') || device.starts_with('.') {
        return None;
    }
    let kind: PathBuf = [devices, Path::new(device), Path::new("iommu_group/type")].iter().collect();
    Some(std::fs::read_to_string(kind).ok()?.trim().to_owned())
}

/// `identity` passes addresses on as they are; DMA, DMA-FQ and whatever may come map them.
fn translates(kind: &str) -> bool {
    kind != "identity"
}

/// Why a socket in zero-copy mode is given up; None while what the kernel has counted is as it
/// should be. No descriptor that was put into a ring here is invalid in itself.
pub fn distrust(now: &Statistics) -> Option<String> {
    let (to, from) = (now.receive_invalid, now.transmit_invalid);
    (to > 0 || from > 0).then(|| {
        format!(
            "the kernel threw {to} receive buffers and {from} pieces of frames away as invalid, as it does where an IOMMU \
             translates addresses: {REMEDY}"
        )
    })
}

#[cfg(test)]
mod tests;
