//! What speaks against zero-copy mode.

use crate::port::xdp::geometry::Geometry;

/// Pages that chunks lie in as a whole, bytes. With pages of 4 KiB nearly each chunk crosses from
/// one to another, which are no neighbours for a device: it would drop every frame.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// What is known when the socket is about to be bound.
#[derive(Debug)]
pub(super) struct Facts {
    /// The interface's driver has the mode, as far as can be told.
    pub driver_has_it: bool,
    /// Why the device may not reach what it was promised, with the remedy.
    pub distrust: Option<String>,
    /// Only frames to one address are the guest's.
    pub has_address: bool,
    /// The smallest pages that the guest's memory lies on, bytes.
    pub page_bytes: usize,
    /// The interface's MTU, bytes.
    pub mtu: usize,
    /// Length of the guest's receive buffers, header included, where that is known.
    pub buffer_bytes: Option<usize>,
}

impl Facts {
    /// Why zero-copy mode does not do, in words that name the remedy where there is one; None where
    /// nothing speaks against it. First what nobody can change, so that nobody is sent for huge
    /// pages that don't help.
    pub(super) fn against_zero_copy(self) -> Option<String> {
        if !self.driver_has_it {
            return Some("its driver has no such mode".to_owned());
        }
        if self.distrust.is_some() {
            return self.distrust;
        }
        if self.has_address {
            return Some(
                "match=mac leaves the host frames that a device would have written to the guest's memory before: \
                 give match=all"
                    .to_owned(),
            );
        }
        if self.page_bytes < LARGE_PAGE_BYTES {
            return Some(format!(
                "the guest's memory lies on pages of {} KiB, and a device reaches no buffer that crosses from one to another: \
                 give the VM huge pages (memory-backend-memfd with hugetlb=on)",
                self.page_bytes >> 10
            ));
        }
        let least = 12 + Geometry::for_zero_copy(self.mtu).frame_bytes as usize;
        let bytes = self.buffer_bytes.filter(|n| *n < least)?;
        Some(format!(
            "the guest's receive buffers have {bytes} bytes, and a device may write up to {least}: raise the guest's MTU"
        ))
    }
}

#[cfg(test)]
mod tests;
