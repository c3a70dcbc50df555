//! Every byte format that zerowire speaks, once, one protocol a module. Plain code: no I/O, no allocation but for texts, no
//! unsafe code.
//!
//! * [`vsock`]: the header of a virtio-vsock packet.
//! * [`mapped`]: the memory and the messages of mapped receive; [`doorbell`] is how its two sides sleep and wake each other.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod doorbell;
pub mod mapped;
pub mod vsock;
