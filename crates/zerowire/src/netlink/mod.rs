//! What the kernel says about a network interface, and how one is set up for zero-copy receive.
//!
//! Nothing here changes a setting but [`Configured`], which sets it back; questions need no privilege.

mod configure;
mod restore;

pub use configure::{Change, ConfigureError, Configured};
pub use zerowire_sys::netlink::*;
