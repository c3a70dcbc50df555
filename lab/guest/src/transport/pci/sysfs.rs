//! Finding a device and giving it to uio_pci_generic.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::PciAddress;
use crate::GuestError;

/// The kernel's driver for drivers in user space.
pub(super) const DRIVER: &str = "uio_pci_generic";
/// Vendor of all virtio devices (virtio 1.3 §4.1.2).
const VENDOR: u64 = 0x1af4;
/// For files that appear after a driver took a device.
const APPEARS: Duration = Duration::from_secs(2);

/// The tree below /sys/bus/pci.
#[derive(Debug)]
pub(super) struct Sysfs(pub PathBuf);

impl Sysfs {
    pub(super) fn real() -> Sysfs {
        Sysfs("/sys/bus/pci".into())
    }

    /// The folder of a device.
    pub(super) fn device(&self, address: PciAddress) -> PathBuf {
        self.0.join("devices").join(address.to_string())
    }

    /// The device to use: that at `wanted`, or the only virtio device with
    /// PCI device id `id` that no kernel driver uses. One that is with
    /// [`DRIVER`] already goes before others.
    pub(super) fn find(&self, id: u16, wanted: Option<PciAddress>) -> Result<PciAddress, GuestError> {
        if let Some(address) = wanted {
            let folder = self.device(address);
            let (vendor, device) = (number(&folder, "vendor")?, number(&folder, "device")?);
            if (vendor, device) != (VENDOR, id.into()) {
                let rule = format!("it is {vendor:04x}:{device:04x}, not {VENDOR:04x}:{id:04x}");
                return Err(bad(address, rule));
            }
            return Ok(address);
        }
        let (mut ours, mut free, mut used) = (Vec::new(), Vec::new(), Vec::new());
        for name in names(&self.0.join("devices"))? {
            let Ok(address) = name.parse::<PciAddress>() else { continue };
            let folder = self.device(address);
            if number(&folder, "vendor")? != VENDOR || number(&folder, "device")? != u64::from(id) {
                continue;
            }
            match self.driver(address).as_deref() {
                Some(DRIVER) => ours.push(address),
                _ if in_use(&folder)? => used.push(address),
                _ => free.push(address),
            }
        }
        let candidates = if ours.is_empty() { free } else { ours };
        match candidates[..] {
            [address] => Ok(address),
            [] => Err(GuestError::BadDevice {
                device: format!("{VENDOR:04x}:{id:04x}"),
                rule: format!(
                    "there is none that the kernel does not use (in use: {}); add one to the machine, or name one",
                    list(&used)
                ),
            }),
            _ => Err(GuestError::BadDevice {
                device: format!("{VENDOR:04x}:{id:04x}"),
                rule: format!("there are several: {}; name one", list(&candidates)),
            }),
        }
    }

    /// Name of the driver that has a device.
    pub(super) fn driver(&self, address: PciAddress) -> Option<String> {
        let link = fs::read_link(self.device(address).join("driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// Takes a device from its driver and gives it to [`DRIVER`].
    pub(super) fn bind(&self, address: PciAddress) -> Result<(), GuestError> {
        let folder = self.device(address);
        // Behind an IOMMU physical addresses mean nothing to the device.
        if folder.join("iommu_group").exists() {
            let rule = "it is behind an IOMMU, which uio can't program; start the guest without one";
            return Err(bad(address, rule.into()));
        }
        let driver = self.driver(address);
        if driver.as_deref() == Some(DRIVER) {
            return Ok(());
        }
        let ours = self.0.join("drivers").join(DRIVER);
        if !ours.is_dir() {
            let rule = format!("the kernel has no driver {DRIVER} for it: load it (modprobe {DRIVER})");
            return Err(bad(address, rule));
        }
        write(&folder.join("driver_override"), DRIVER)?;
        if driver.is_some() {
            write(&folder.join("driver/unbind"), &address.to_string())?;
        }
        write(&ours.join("bind"), &address.to_string())
    }

    /// Gives a device back to the kernel's own driver.
    pub(super) fn unbind(&self, address: PciAddress) -> Result<(), GuestError> {
        // A line feed alone takes the override away.
        write(&self.device(address).join("driver_override"), "\n")?;
        write(&self.0.join("drivers").join(DRIVER).join("unbind"), &address.to_string())?;
        write(&self.0.join("drivers_probe"), &address.to_string())
    }

    /// Name of a bound device's node in /dev.
    pub(super) fn uio(&self, address: PciAddress) -> Result<String, GuestError> {
        let folder = self.device(address).join("uio");
        let start = Instant::now();
        loop {
            let found =
                names(&folder).ok().and_then(|names| names.into_iter().find(|n| n.starts_with("uio")));
            match found {
                Some(name) => return Ok(name),
                None if start.elapsed() > APPEARS => {
                    return Err(bad(address, format!("{} did not appear", folder.display())));
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

pub(super) fn bad(address: PciAddress, rule: String) -> GuestError {
    GuestError::BadDevice { device: address.to_string(), rule }
}

/// Whether a device's virtio bus device has a driver. A kernel serves only one vsock device, so a
/// second one is known to virtio-pci and has none.
fn in_use(folder: &Path) -> Result<bool, GuestError> {
    let names = names(folder)?;
    let mut virtio = names.iter().filter(|name| name.starts_with("virtio"));
    Ok(virtio.any(|name| folder.join(name).join("driver").exists()))
}

fn list(addresses: &[PciAddress]) -> String {
    let all: Vec<String> = addresses.iter().map(PciAddress::to_string).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

fn names(folder: &Path) -> Result<Vec<String>, GuestError> {
    let failed = |e: io::Error| GuestError::io(format!("reading {}", folder.display()), e);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// A file with one number such as `0x1af4`.
fn number(folder: &Path, name: &str) -> Result<u64, GuestError> {
    let path = folder.join(name);
    let text = fs::read_to_string(&path);
    let text = text.map_err(|e| GuestError::io(format!("reading {}", path.display()), e))?;
    let digits = text.trim().trim_start_matches("0x");
    u64::from_str_radix(digits, 16).map_err(|_| GuestError::BadDevice {
        device: path.display().to_string(),
        rule: format!("'{}' is no hexadecimal number", text.trim().escape_debug()),
    })
}

fn write(path: &Path, text: &str) -> Result<(), GuestError> {
    let failed = |e| GuestError::io(format!("writing '{}' to {} (as root)", text.trim(), path.display()), e);
    fs::write(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
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
}
