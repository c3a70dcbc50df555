//! Whole frames through AF_XDP: from a program's memory to one queue of an interface, without the
//! kernel's network stack (Documentation/networking/af_xdp.rst).
//!
//! [`XdpSender`] sends frames that are built in place, or loaded once and sent many times. In copy
//! mode, which every interface has, the kernel copies each frame once; in zero-copy mode the
//! interface reads the memory itself. [`XdpSender::zero_copy`] says which one runs.

mod sender;

pub use sender::{Resident, SenderOptions, XdpSender};
pub use zerowire_sys::xdp::{Mode, Statistics, XdpError};
