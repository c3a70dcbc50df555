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
        let rule = match candidates[..] {
            [address] => return Ok(address),
            [] => format!(
                "there is none that the kernel does not use (in use: {}); add one to the machine, or name one",
                list(&used)
            ),
            _ => format!("there are several: {}; name one", list(&candidates)),
        };
        Err(GuestError::BadDevice { device: format!("{VENDOR:04x}:{id:04x}"), rule })
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
mod tests;
