//! Every byte format that zerowire speaks, once, one protocol a module. Plain code: no I/O, and no
//! allocation but for texts and captures.
//!
//! * [`ethernet`], [`arp`], [`ipv4`], [`ipv6`] ([`ip`] is what both have), [`icmpv6`], [`ndp`],
//!   [`tcp`], [`udp`]: where fields stand, and what a header says. [`checksum`] is the internet
//!   checksum.
//! * [`vnet`]: the virtio-net header.
//! * [`vsock`]: the header of a virtio-vsock packet.
//! * [`http`]: what servers of it have in common.
//! * [`pcapng`]: captures; [`vsockmon`]: how they have vsock packets.
//! * [`mapped`]: the memory and the messages of mapped receive; [`doorbell`] is how its two sides
//!   sleep and wake each other.
#![warn(missing_docs)]
#![warn(clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
pub mod doorbell;
pub mod ethernet;
pub mod http;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod mapped;
pub mod ndp;
pub mod pcapng;
mod setters;
pub mod tcp;
pub mod udp;
pub mod vnet;
pub mod vsock;
pub mod vsockmon;

/// The number of two bytes in network order at `at`; None where the bytes end before.
#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}
