//! A guest without a VM: it drives virtio-net and virtio-vsock devices from an ordinary process. It
//! serves demonstrations, benchmarks and tests of devices.
//!
//! - [`GuestMemory`]: RAM in memfds, at any guest-physical addresses,
//! - [`Transport`]: how a driver reaches its device; [`VhostUser`] is the
//!   front end of a vhost-user back end, [`pci`] reaches devices of the
//!   machine, inside a real guest,
//! - [`ring::DriverRing`]: the driver's side of a split queue,
//! - [`net::NetDriver`]: the network driver with its queues,
//! - [`vsock::VsockDriver`]: the vsock driver with its queues, and
//!   [`vsock::VsockStack`], connections over them,
//! - [`misbehave`]: everything that a guest must not do, for hostile tests.
//!
//! ```no_run
//! use std::time::Duration;
//! use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
//! use zerowire_guest::net::{NetDriver, NetOptions, VirtioNetHdr};
//!
//! let memory = GuestMemory::new(&[(GuestAddr(0), 64 << 20)])?;
//! let transport = VhostUser::connect("/run/net.sock", Duration::from_secs(1))?;
//! let (_driver, mut pairs) = NetDriver::start(transport, &memory, &NetOptions::default())?;
//! let pair = &mut pairs[0];
//! pair.tx.send(&VirtioNetHdr::default(), &[0xff; 60])?;
//! pair.tx.publish()?;
//! if let Some((header, frame)) = pair.rx.recv(Duration::from_secs(1))? {
//!     println!("{} bytes in {} buffers", frame.len(), header.num_buffers);
//! }
//! # Ok::<(), zerowire_guest::GuestError>(())
//! ```
//!
//! # A benchmark's loops
//! Frames are written once into a [`net::FramePool`]; sending them writes
//! descriptors only, and nothing is allocated:
//!
//! ```no_run
//! # use zerowire_guest::{GuestError, GuestMemory, net::*};
//! # fn example(
//! #     memory: &GuestMemory, tx: &mut TxQueue, rx: &mut RxQueue,
//! # ) -> Result<(), GuestError> {
//! let shape = FrameShape { layout: Layout::Split, indirect: false, capacity: 1514 };
//! let cold = 64 << 20;
//! let pool = FramePool::filled(memory, shape, cold, &VirtioNetHdr::default(), &[1; 1514])?;
//! let mut cursor = 0;
//! loop {
//!     tx.submit_cycle(&pool, &mut cursor, 64);
//!     tx.publish()?;
//!     tx.reap()?;
//!     rx.harvest(64, |frame| drop(frame.len))?;
//!     rx.publish()?;
//! }
//! # }
//! ```
//!
//! # Connections
//! A [`vsock::VsockStack`] does nothing by itself: its calls make it work.
//!
//! ```no_run
//! use std::time::Duration;
//! use zerowire_guest::vsock::{HOST_CID, SocketType, StackOptions};
//! use zerowire_guest::vsock::{VsockDriver, VsockOptions, VsockStack};
//! use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
//!
//! let patience = Duration::from_secs(5);
//! let memory = GuestMemory::new(&[(GuestAddr(0), 64 << 20)])?;
//! let transport = VhostUser::connect("/run/vsock.sock", patience)?;
//! let (_driver, queues) = VsockDriver::start(transport, &memory, &VsockOptions::default())?;
//! let mut stack = VsockStack::new(queues, StackOptions::default());
//! let conn = stack.connect(HOST_CID, 1234, SocketType::Stream)?;
//! if stack.wait_connected(conn, patience)? {
//!     stack.send_all(conn, b"hello", patience)?;
//!     let answer = stack.recv_exact(conn, 5, patience)?;
//!     println!("{}", String::from_utf8_lossy(&answer));
//!     stack.close(conn)?;
//! }
//! # Ok::<(), zerowire_guest::GuestError>(())
//! ```
//!
//! # In a real guest
//! The same driver runs a device of the guest's, and the program reads what
//! the host sends where the device wrote it. It needs root, huge pages and a
//! device that the kernel does not use (see [`pci`]):
//!
//! ```no_run
//! use std::time::Duration;
//! use zerowire_guest::vsock::{SocketType, StackOptions, VsockDriver, VsockOptions, VsockStack};
//! use zerowire_guest::{GuestMemory, pci};
//!
//! let patience = Duration::from_secs(5);
//! let device = pci::PciDevice::open(pci::VSOCK, &pci::PciOptions::default())?;
//! let memory = GuestMemory::physical(4)?;
//! let options = VsockOptions { rx_align_payload: true, ..VsockOptions::default() };
//! let (_driver, queues) = VsockDriver::start(device, &memory, &options)?;
//! let mut stack = VsockStack::new(queues, StackOptions::default());
//! stack.listen_in_place(1234, SocketType::Stream);
//! let conn = stack.accept_wait(1234, patience)?;
//! while let Some(lease) = stack.dequeue_wait(conn, 1, patience)? {
//!     for packet in lease.packets() {
//!         println!("{} bytes at {:p}", packet.len(), packet.as_ptr());
//!     }
//! }
//! # Ok::<(), zerowire_guest::GuestError>(())
//! ```

#![warn(clippy::missing_errors_doc)]

mod driver;
mod error;
mod frames;
mod memory;
pub mod misbehave;
pub mod net;
mod queue;
pub mod ring;
mod transport;
pub mod vsock;

pub use driver::{DeviceDriver, DeviceQueues};
pub use error::GuestError;
pub use memory::{GuestAddr, GuestMemory, GuestSlice, PAGE, Region};
pub use queue::DriverQueue;
pub use transport::pci;
pub use transport::{
    DirtyLog, Doorbell, DualAddr, InflightArea, Interrupt, LOG_PAGE, QueueHandle, QueueSetup,
    STATUS_ACKNOWLEDGE, STATUS_DRIVER, STATUS_DRIVER_OK, STATUS_FEATURES_OK, STATUS_NEEDS_RESET, Transport,
    VhostUser, VhostUserOptions, new_eventfd,
};
pub use zerowire_vhost_user::{features, protocol};
