//! A guest without a VM: it drives virtio-net and virtio-vsock devices from an
//! ordinary process, for demonstrations, benchmarks and tests of devices.
//!
//! - [`GuestMemory`]: RAM in memfds, at any guest-physical addresses,
//! - [`Transport`]: how a driver reaches its device; [`VhostUser`] is the
//!   front end of a vhost-user back end,
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
//! # fn example(memory: &GuestMemory, tx: &mut TxQueue, rx: &mut RxQueue) -> Result<(), GuestError> {
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
//! use zerowire_guest::vsock::{HOST_CID, SocketType, StackOptions, VsockDriver, VsockOptions, VsockStack};
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

mod error;
mod memory;
pub mod misbehave;
pub mod net;
pub mod ring;
mod transport;
pub mod vsock;
mod wait;

pub use error::GuestError;
pub use memory::{GuestAddr, GuestMemory, GuestSlice, PAGE, Region};
pub use transport::{
    Doorbell, DualAddr, EventDoorbell, Interrupt, QueueHandle, QueueSetup, STATUS_ACKNOWLEDGE, STATUS_DRIVER,
    STATUS_DRIVER_OK, STATUS_FAILED, STATUS_FEATURES_OK, STATUS_NEEDS_RESET, Transport, VhostUser,
    VhostUserOptions,
};
pub use zerowire_vhost_user::{features, protocol};
