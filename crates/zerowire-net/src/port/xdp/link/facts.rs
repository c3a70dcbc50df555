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
        let least = 12 + Geometry::for_zero_copy(self.mtu).frame_bytes() as usize;
        let bytes = self.buffer_bytes.filter(|n| *n < least)?;
        Some(format!(
            "the guest's receive buffers have {bytes} bytes, and a device may write up to {least}: raise the guest's MTU"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that zero copy is safe for.
    fn fit() -> Facts {
        Facts {
            driver_has_it: true,
            distrust: None,
            has_address: false,
            page_bytes: 2 << 20,
            mtu: 1500,
            buffer_bytes: Some(1548),
        }
    }

    #[test]
    fn a_guest_with_huge_pages_and_long_buffers_has_it() {
        assert_eq!(fit().against_zero_copy(), None);
        assert_eq!(Facts { buffer_bytes: None, ..fit() }.against_zero_copy(), None);
        assert_eq!(Facts { page_bytes: 1 << 30, ..fit() }.against_zero_copy(), None);
    }

    #[test]
    fn each_reason_names_the_remedy() {
        let distrust = Some("behind an IOMMU: boot with iommu=pt".to_owned());
        for (facts, words) in [
            (Facts { driver_has_it: false, ..fit() }, "its driver has no such mode"),
            (Facts { distrust, ..fit() }, "boot with iommu=pt"),
            (Facts { has_address: true, ..fit() }, "give match=all"),
            (Facts { page_bytes: 4096, ..fit() }, "pages of 4 KiB"),
            (Facts { page_bytes: 4096, ..fit() }, "hugetlb=on"),
            (Facts { page_bytes: 0, ..fit() }, "hugetlb=on"),
            // What Linux posts at an MTU of 1500, and one byte too few.
            (Facts { buffer_bytes: Some(1536), ..fit() }, "1536 bytes, and a device may write up to 1548"),
            (Facts { buffer_bytes: Some(1547), ..fit() }, "raise the guest's MTU"),
            (Facts { mtu: 1550, ..fit() }, "up to 1676"),
        ] {
            let why = facts.against_zero_copy().unwrap_or_default();
            assert!(why.contains(words), "no '{words}' in '{why}'");
        }
    }

    #[test]
    fn huge_pages_are_not_asked_for_where_they_would_not_help() {
        let none = Facts { driver_has_it: false, page_bytes: 4096, buffer_bytes: Some(60), ..fit() };
        assert!(none.against_zero_copy().is_some_and(|why| !why.contains("huge")));
    }
}
