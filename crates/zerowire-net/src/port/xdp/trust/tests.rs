use super::*;

#[test]
fn only_what_passes_addresses_on_is_trusted() {
    assert!(!translates("identity"));
    for kind in ["DMA", "DMA-FQ", "unmanaged", "auto", ""] {
        assert!(translates(kind), "{kind}");
    }
}

#[test]
fn the_domain_is_found_by_the_address_on_the_bus() {
    let dir = tempfile::tempdir().expect("a directory");
    let group = dir.path().join("0000:03:00.0/iommu_group");
    std::fs::create_dir_all(&group).expect("a directory");
    std::fs::write(group.join("type"), "DMA-FQ\n").expect("written");
    assert_eq!(domain_of(dir.path(), "0000:03:00.0").as_deref(), Some("DMA-FQ"));
    for none in ["0000:04:00.0", "", "../x", "a/b", "."] {
        assert_eq!(domain_of(dir.path(), none), None, "{none}");
    }
}

#[test]
fn a_count_of_invalid_descriptors_ends_the_trust() {
    let good = Statistics { receive_dropped: 9, fill_empty: 3, transmit_empty: 2, ..Statistics::default() };
    assert_eq!(distrust(&good), None);
    let why = distrust(&Statistics { transmit_invalid: 7, ..good }).expect("a reason");
    assert!(why.contains("7 pieces") && why.contains("iommu=pt") && why.contains("mode=copy"), "{why}");
    assert!(distrust(&Statistics { receive_invalid: 1, ..good }).is_some());
}
