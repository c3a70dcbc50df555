//! How a driver reaches its device: features, queues, notifications, memory.
//!
//! The drivers of this crate use a [`Transport`] for the set-up. Then they use only a [`Doorbell`]
//! and an [`Interrupt`] a queue. So they don't know whether the device is a vhost-user back end or
//! sits on a bus.

mod inflight;
mod log;
pub mod pci;
mod signal;
mod vhost_user;

use std::io;
use std::sync::Arc;

use crate::{GuestAddr, GuestError, GuestMemory, Region};
pub use inflight::InflightArea;
pub use log::{DirtyLog, LOG_PAGE};
pub use signal::{Interrupt, new_eventfd};
pub use vhost_user::{VhostUser, VhostUserOptions};

/// Device status bit ACKNOWLEDGE (virtio 1.3 §2.1).
pub const STATUS_ACKNOWLEDGE: u64 = 1;
/// Device status bit DRIVER.
pub const STATUS_DRIVER: u64 = 2;
/// Device status bit DRIVER_OK.
pub const STATUS_DRIVER_OK: u64 = 4;
/// Device status bit FEATURES_OK.
pub const STATUS_FEATURES_OK: u64 = 8;
/// Device status bit DEVICE_NEEDS_RESET.
pub const STATUS_NEEDS_RESET: u64 = 64;

/// An address in the terms of both sides: a bus device wants the guest's, a
/// vhost-user back end the front end's own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DualAddr {
    /// Guest-physical address.
    pub guest: GuestAddr,
    /// Address in this process.
    pub user: u64,
}

/// Where a queue lies and where its device goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct QueueSetup {
    /// Entries, a power of two.
    pub size: u16,
    /// Available index that the device reads first.
    pub next_avail: u16,
    /// Descriptor table.
    pub desc: DualAddr,
    /// Available ring.
    pub avail: DualAddr,
    /// Used ring.
    pub used: DualAddr,
}

/// Tells the device that a queue has new buffers.
pub trait Doorbell: Send {
    /// Notifies the device.
    ///
    /// # Errors
    /// When the device can't be notified any more.
    fn ring(&self) -> io::Result<()>;
}

/// What a driver holds of a queue that was set up.
pub struct QueueHandle {
    /// Notifies the device.
    pub doorbell: Box<dyn Doorbell>,
    /// Is notified by the device.
    pub interrupt: Interrupt,
    /// Is notified when the device stops the queue because of an error.
    pub error: Option<Interrupt>,
}

/// A virtio device as its driver sees it (virtio 1.3 §3.1, §4).
///
/// # Errors
/// All calls fail with the errors of the transport; those that have errors of their own name them.
#[allow(clippy::missing_errors_doc, reason = "said above, for all calls")]
pub trait Transport {
    /// Features that the device offers.
    fn device_features(&mut self) -> Result<u64, GuestError>;

    /// As [`Transport::device_features`], and checks that these are among them.
    ///
    /// # Errors
    /// [`GuestError::FeaturesMissing`].
    fn require(&mut self, required: u64) -> Result<u64, GuestError> {
        let offered = self.device_features()?;
        match required & !offered {
            0 => Ok(offered),
            missing => Err(GuestError::FeaturesMissing { missing, offered }),
        }
    }

    /// Acknowledges features and checks that the device accepts them.
    ///
    /// # Errors
    /// [`GuestError::FeaturesRefused`].
    fn negotiate(&mut self, features: u64) -> Result<(), GuestError>;

    /// The most queues that the device has (queues, not pairs).
    fn max_queues(&mut self) -> Result<u16, GuestError>;

    /// Reads `len` bytes of the configuration space from `offset` (virtio 1.3
    /// §2.5).
    ///
    /// # Errors
    /// [`GuestError::NotNegotiated`] where the transport has no such space.
    fn config(&mut self, offset: u32, len: u32) -> Result<Vec<u8>, GuestError>;

    /// Lets the device use all regions of `memory`, instead of any others.
    fn share_memory(&mut self, memory: &GuestMemory) -> Result<(), GuestError>;

    /// Lets the device use one more region.
    fn add_memory(&mut self, region: &Arc<Region>) -> Result<(), GuestError>;

    /// Takes a region away from the device. When this returns, the device
    /// uses it no more.
    fn remove_memory(&mut self, region: &Arc<Region>) -> Result<(), GuestError>;

    /// Tells the device of a queue; it does not run before
    /// [`Transport::enable_queue`].
    fn start_queue(&mut self, index: u16, setup: &QueueSetup) -> Result<QueueHandle, GuestError>;

    /// Lets a queue run, or pauses it.
    fn enable_queue(&mut self, index: u16, on: bool) -> Result<(), GuestError>;

    /// Stops a queue and returns the available index that the device would
    /// have read next.
    fn stop_queue(&mut self, index: u16) -> Result<u16, GuestError>;

    /// Sets DRIVER_OK, where the transport has a device status.
    fn driver_ok(&mut self) -> Result<(), GuestError>;

    /// Resets the device (virtio 1.3 §2.4). Its queues are gone then.
    fn reset(&mut self) -> Result<(), GuestError>;
}
