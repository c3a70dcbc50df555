//! An area that several receivers use.

use super::open::LeasePlan;
use super::shared::SharedIfq;
use crate::recv::core::RecvState;
use crate::recv::receiver::core_on;
use crate::recv::{RecvError, RecvOptions};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The area of a receiver for others to use, on other threads of this process (`ZCRX_CTRL_EXPORT`,
/// Linux 7.0): [`Receiver::export`](crate::recv::Receiver::export) and
/// [`Receiver::import`](crate::recv::Receiver::import).
///
/// The memory, the refill ring and, on a device, the queue live as long as the receivers, their
/// leases, and this value with its clones. Another process can't take part: it doesn't have the
/// memory.
#[derive(Clone, Debug)]
pub struct SharedArea {
    pub(super) shared: Arc<SharedIfq>,
    pub(super) fd: Arc<OwnedFd>,
}

impl SharedArea {
    pub(super) fn new(shared: Arc<SharedIfq>, fd: OwnedFd) -> Self {
        shared.set_exported();
        Self { shared, fd: Arc::new(fd) }
    }

    /// Bytes of the area, with those that were added
    /// ([`Receiver::add_area`](crate::recv::Receiver::add_area)).
    pub fn area_bytes(&self) -> usize {
        self.shared.areas.bytes()
    }

    /// Buffers of the area, as the kernel cuts it, with those of areas that were added.
    pub fn buffers(&self) -> usize {
        self.shared.areas.buffers()
    }

    /// What a receiver on it needs.
    pub(in crate::recv) fn core(&self, options: &RecvOptions) -> Result<RecvState, RecvError> {
        let plan = LeasePlan::part(&self.shared, options);
        let areas = self.shared.areas.after(0).into_iter();
        // The others follow, see `ZcrxState::new`.
        let first = areas.map(|(area, _)| area).next().ok_or(RecvError::NotShareable)?;
        core_on(first, options.buffer_bytes, plan.slots, plan.share)
    }
}
