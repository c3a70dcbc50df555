//! AF_XDP: whole frames between a program's memory and one queue of an interface, without the kernel's network stack
//! (Documentation/networking/af_xdp.rst).
//!
//! * [`Umem`]: memory that is registered with the kernel: the program's own, or the caller's (a guest's RAM).
//! * [`Socket`]: a bound queue, with its four rings ([`Producer`], [`Consumer`]): fill and receive, transmit and
//!   completion.
//! * [`XdpSender`]: sends frames that are built in place, or loaded once and sent many times.
//! * [`address`]: addresses of unaligned chunks, and the cookie that comes back with them.
//! * [`program`]: the XDP program that steers received frames to sockets.
//!
//! In copy mode, which every interface has, the kernel copies each frame once; in zero-copy mode the interface reads and
//! writes the memory itself. [`Socket::zero_copy`] says which one runs.

mod sender;

pub use sender::{Resident, SenderOptions, XdpSender};
pub use zerowire_sys::xdp::*;
