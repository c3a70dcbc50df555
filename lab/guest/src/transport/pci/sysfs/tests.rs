use std::os::unix::fs::symlink;

use super::*;

/// A tree with the drivers of a guest.
fn tree() -> (tempfile::TempDir, Sysfs) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("pci");
    for driver in [DRIVER, "virtio-pci"] {
        fs::create_dir_all(root.join("drivers").join(driver)).unwrap();
    }
    fs::create_dir_all(root.join("devices")).unwrap();
    (dir, Sysfs(root))
}

/// A device with a driver, and with a driver of its virtio device or not.
fn add(sysfs: &Sysfs, address: &str, id: &str, driver: &str, in_use: bool) -> PciAddress {
    let folder = sysfs.0.join("devices").join(address);
    fs::create_dir_all(folder.join("virtio5")).unwrap();
    fs::write(folder.join("vendor"), "0x1af4\n").unwrap();
    fs::write(folder.join("device"), format!("{id}\n")).unwrap();
    symlink(sysfs.0.join("drivers").join(driver), folder.join("driver")).unwrap();
    if in_use {
        symlink("/", folder.join("virtio5/driver")).unwrap();
    }
    address.parse().unwrap()
}

#[test]
fn the_device_that_nobody_uses_is_found() {
    let (_dir, sysfs) = tree();
    add(&sysfs, "0000:01:00.0", "0x1053", "virtio-pci", true);
    add(&sysfs, "0000:02:00.0", "0x1041", "virtio-pci", false);
    let error = sysfs.find(0x1053, None).unwrap_err().to_string();
    assert!(error.contains("in use: 0000:01:00.0"), "{error}");
    let free = add(&sysfs, "0000:03:00.0", "0x1053", "virtio-pci", false);
    assert_eq!(sysfs.find(0x1053, None).unwrap(), free);
    add(&sysfs, "0000:04:00.0", "0x1053", "virtio-pci", false);
    let error = sysfs.find(0x1053, None).unwrap_err().to_string();
    assert!(error.contains("0000:03:00.0, 0000:04:00.0"), "{error}");
    let bound = add(&sysfs, "0000:05:00.0", "0x1053", DRIVER, false);
    assert_eq!(sysfs.find(0x1053, None).unwrap(), bound);
    assert_eq!(sysfs.find(0x1053, Some(free)).unwrap(), free);
    let error = sysfs.find(0x1053, Some("2:0.0".parse().unwrap())).unwrap_err().to_string();
    assert!(error.contains("1af4:1041"), "{error}");
}

#[test]
fn a_device_goes_to_uio_and_back() {
    let (_dir, sysfs) = tree();
    let address = add(&sysfs, "0000:03:00.0", "0x1053", "virtio-pci", false);
    sysfs.bind(address).unwrap();
    let read = |path: &str| fs::read_to_string(sysfs.0.join(path)).unwrap();
    assert_eq!(read("devices/0000:03:00.0/driver_override"), DRIVER);
    assert_eq!(read("drivers/virtio-pci/unbind"), "0000:03:00.0");
    assert_eq!(read("drivers/uio_pci_generic/bind"), "0000:03:00.0");
    sysfs.unbind(address).unwrap();
    assert_eq!(read("devices/0000:03:00.0/driver_override"), "\n");
    assert_eq!(read("drivers/uio_pci_generic/unbind"), "0000:03:00.0");
    assert_eq!(read("drivers_probe"), "0000:03:00.0");
}

#[test]
fn what_keeps_a_device_from_uio_is_named() {
    let (_dir, sysfs) = tree();
    let address = add(&sysfs, "0000:03:00.0", "0x1053", "virtio-pci", false);
    fs::remove_dir(sysfs.0.join("drivers").join(DRIVER)).unwrap();
    let error = sysfs.bind(address).unwrap_err().to_string();
    assert!(error.contains("modprobe"), "{error}");
    fs::create_dir(sysfs.device(address).join("iommu_group")).unwrap();
    let error = sysfs.bind(address).unwrap_err().to_string();
    assert!(error.contains("IOMMU"), "{error}");
    assert!(!sysfs.device(address).join("driver_override").exists());
}
