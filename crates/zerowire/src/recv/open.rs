//! Which back end receives, of those that this build has.

use super::backend::Engine;
use super::core::RecvState;
#[cfg(feature = "uring")]
use super::multishot::Multishot;
use super::plain::Plain;
#[cfg(feature = "zcrx")]
use super::zcrx::Zcrx;
use super::{RecvBackend, RecvError, RecvOptions};

/// Sets the back end up. Returns it, and why it is not a better one.
pub(super) fn engine(
    core: &mut RecvState,
    options: &RecvOptions,
) -> Result<(Box<dyn Engine>, Option<String>), RecvError> {
    let why = match &options.backend {
        #[cfg(feature = "zcrx")]
        RecvBackend::Queue { .. } | RecvBackend::NoDevice => {
            return Ok((Box::new(Zcrx::new(core, options)?), None));
        }
        #[cfg(not(feature = "zcrx"))]
        RecvBackend::Queue { .. } | RecvBackend::NoDevice => {
            return Err(RecvError::NotBuilt { path: "zcrx", feature: "zcrx" });
        }
        RecvBackend::Multishot => return Ok((multishot(core, options)?, None)),
        RecvBackend::Plain => None,
        RecvBackend::Auto => match multishot(core, options) {
            Ok(engine) => return Ok((engine, None)),
            Err(e) => Some(e.to_string()),
        },
    };
    Ok((Box::new(Plain::new(core, options)?), why))
}

#[cfg(feature = "uring")]
fn multishot(core: &mut RecvState, options: &RecvOptions) -> Result<Box<dyn Engine>, RecvError> {
    Ok(Box::new(Multishot::new(core, options)?))
}

#[cfg(not(feature = "uring"))]
fn multishot(_: &mut RecvState, _: &RecvOptions) -> Result<Box<dyn Engine>, RecvError> {
    Err(RecvError::NotBuilt { path: "multishot", feature: "uring" })
}
