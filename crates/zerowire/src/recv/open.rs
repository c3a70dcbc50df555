//! Which back end receives, of those that this build has.

use super::backend::Engine;
use super::core::RecvState;
#[cfg(feature = "uring")]
use super::multishot::Multishot;
use super::plain::Plain;
#[cfg(feature = "zcrx")]
use super::zcrx::{self, Zcrx};
use super::{RecvBackend, RecvError, RecvOptions};
use crate::area::Area;

type Opened = Result<Box<dyn Engine>, RecvError>;

/// Sets the back end up. Returns it, and why it is not a better one.
pub(super) fn engine(
    core: &mut RecvState,
    options: &RecvOptions,
) -> Result<(Box<dyn Engine>, Option<String>), RecvError> {
    let engine = match &options.backend {
        RecvBackend::Queue { .. } | RecvBackend::NoDevice => zcrx(core, options)?,
        RecvBackend::Multishot => multishot(core, options)?,
        RecvBackend::Plain => plain(core, options)?,
        RecvBackend::Auto => match multishot(core, options) {
            Ok(engine) => engine,
            Err(e) => return Ok((plain(core, options)?, Some(e.to_string()))),
        },
    };
    Ok((engine, None))
}

fn plain(core: &mut RecvState, options: &RecvOptions) -> Opened {
    Ok(Box::new(Plain::new(core, options)?))
}

#[cfg(feature = "uring")]
fn multishot(core: &mut RecvState, options: &RecvOptions) -> Opened {
    Ok(Box::new(Multishot::new(core, options)?))
}

#[cfg(not(feature = "uring"))]
fn multishot(_: &mut RecvState, _: &RecvOptions) -> Opened {
    Err(RecvError::NotBuilt { path: "multishot", feature: "uring" })
}

#[cfg(feature = "zcrx")]
fn zcrx(core: &mut RecvState, options: &RecvOptions) -> Opened {
    Ok(Box::new(Zcrx::new(core, options)?))
}

#[cfg(not(feature = "zcrx"))]
fn zcrx(_: &mut RecvState, _: &RecvOptions) -> Opened {
    Err(RecvError::NotBuilt { path: "zcrx", feature: "zcrx" })
}

/// Leases at a time, and those of one connection, where pieces of buffers are lent and not whole
/// ones: zero-copy receive.
#[cfg(feature = "zcrx")]
pub(super) fn slots(options: &RecvOptions) -> Result<Option<(usize, usize)>, RecvError> {
    Ok(zcrx::LeasePlan::of(options)?.map(|plan| (plan.slots, plan.share)))
}

#[cfg(not(feature = "zcrx"))]
pub(super) fn slots(_: &RecvOptions) -> Result<Option<(usize, usize)>, RecvError> {
    Ok(None)
}

/// The area, where it is a device's memory.
#[cfg(feature = "zcrx")]
pub(super) fn device_memory(options: &RecvOptions) -> Result<Option<Area>, RecvError> {
    zcrx::device_memory(options)
}

#[cfg(not(feature = "zcrx"))]
pub(super) fn device_memory(_: &RecvOptions) -> Result<Option<Area>, RecvError> {
    Ok(None)
}
