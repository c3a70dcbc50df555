//! Sleeping until a device has used chains.

use std::time::Duration;

use crate::ring::DriverRing;
use crate::{GuestError, QueueHandle};

/// Arms the ring, sleeps unless there is something already, disarms. True
/// when there is something to reap.
pub(crate) fn wait_used(
    ring: &mut DriverRing,
    handle: &QueueHandle,
    count: u16,
    timeout: Duration,
) -> Result<bool, GuestError> {
    let failed = |e| GuestError::io("waiting for the device's interrupt", e);
    if !ring.arm(count) && handle.interrupt.wait(timeout).map_err(failed)? {
        handle.interrupt.clear().map_err(failed)?;
    }
    ring.disarm();
    Ok(ring.has_used())
}
