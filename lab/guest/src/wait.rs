//! Sleeping until a device has used chains.

use std::time::{Duration, Instant};

use crate::ring::DriverRing;
use crate::{GuestError, QueueHandle};

/// Arms the ring, sleeps unless there is something already, disarms. True when there is something
/// to reap; false when `timeout` is over. (An interrupt alone says little: it may be of chains that
/// were reaped before it came.)
pub(crate) fn wait_used(
    ring: &mut DriverRing,
    handle: &QueueHandle,
    count: u16,
    timeout: Duration,
) -> Result<bool, GuestError> {
    let failed = |e| GuestError::io("waiting for the device's interrupt", e);
    let start = Instant::now();
    let mut left = timeout;
    loop {
        if !ring.arm(count) && handle.interrupt.wait(left).map_err(failed)? {
            handle.interrupt.clear().map_err(failed)?;
        }
        ring.disarm();
        if ring.has_used() {
            return Ok(true);
        }
        match timeout.checked_sub(start.elapsed()) {
            Some(rest) if !rest.is_zero() => left = rest,
            _ => return Ok(false),
        }
    }
}
