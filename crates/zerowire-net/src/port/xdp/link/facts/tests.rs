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
