//! Receiving in place: payload appears in memory that the program has mapped, is read there, and given back.
//!
//! * [`vsock`]: a guest's streams and messages, from `zerowire vsock`.
//! * [`layout`]: what a program and `zerowire vsock` share.
//! * [`doorbell`]: how each side sleeps and is woken without a system call while both are busy.

pub mod doorbell;
pub mod layout;
pub mod vsock;
