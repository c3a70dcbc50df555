//! The columns of the table: the ways of sending that are compared.

use clap::ValueEnum;
use serde::Serialize;

use crate::words::by_words;

/// A way of sending. Its text is the one of the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// packet socket, send(), copying
    // What the published table calls no-zc.
    Send,
    /// packet socket, sendmmsg(), copying
    Sendmmsg,
    /// PACKET_TX_RING, payload resident in the ring, headers built in place
    Ring,
    /// PACKET_TX_RING, each frame copied into the ring
    RingCopied,
    /// AF_XDP in copy mode, frames resident in its memory
    Xdp,
    /// UDP, send(), copying
    Udp,
    /// UDP, MSG_ZEROCOPY, each notification awaited (published: zc)
    Zc,
    /// UDP, MSG_ZEROCOPY, notifications read a batch at a time (published: recvmmsg)
    ZcBatched,
    /// UDP, io_uring SEND_ZC, a batch at a time
    SendZc,
    /// UDP, io_uring SEND_ZC from registered memory
    SendZcFixed,
    /// UDP, the library chooses by measurement
    Auto,
}

by_words!(Column);

impl Column {
    /// Whether the kernel says of each send whether it copied. A transmit ring only says that a
    /// slot is free again. What its proof counts as not copied left the ring uncopied, and a veth
    /// copies it later.
    pub fn kernel_tells(self) -> bool {
        self != Self::Ring
    }

    /// Whether only one such socket can be open on the device at a time.
    pub fn is_exclusive(self) -> bool {
        self == Self::Xdp
    }

    /// The copying column that it is compared with: the same kind of socket, and the same work but
    /// for the copy.
    pub fn copying(self) -> Self {
        match self {
            Self::Send | Self::Sendmmsg | Self::Ring | Self::RingCopied | Self::Xdp => Self::Send,
            _ => Self::Udp,
        }
    }
}
