//! Modern virtio devices on the PCI bus of this machine (virtio 1.3 §4.1). Drivers in a real guest
//! that run in user space reach them through uio_pci_generic.
//!
//! # Who owns what
//! The program needs root and a device of its own, which the kernel's driver gives up for it. The
//! device gets physical addresses ([`crate::GuestMemory::physical`]) and nothing keeps it from
//! other memory: the program is trusted like the kernel.
//!
//! The memory stays mapped until the device has been reset. When the program dies, the kernel
//! closes the uio descriptor and takes the device's access to memory away. Of machines, x86-64 is
//! meant: elsewhere a doorbell may need stronger barriers.
//!
//! # Interrupts
//! The device's line INTx comes through the uio descriptor, one for all queues
//! ([`PciOptions::interrupts`]). So one thread must wait for all of them, as
//! [`crate::vsock::VsockStack`] does. Without an interrupt a timer makes the driver look each
//! millisecond. A driver that spins needs neither.

mod address;
mod bar;
mod capabilities;
mod common;
mod device;
mod interrupt;
mod sysfs;

pub use address::PciAddress;
pub use device::{PciDevice, PciOptions};
pub(super) use interrupt::UioInterrupt;

/// PCI device id of a vsock device: 0x1040 and the virtio id (§4.1.2.1).
pub const VSOCK: u16 = 0x1053;
