//! The columns of the table: the ways of sending that are compared.

use std::fmt;

use serde::Serialize;

/// A way of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// send() on a packet socket: what the published table calls no-zc.
    Send,
    /// sendmmsg() on a packet socket.
    Sendmmsg,
    /// PACKET_TX_RING, payload resident in the ring, headers built in place.
    Ring,
    /// PACKET_TX_RING, each frame copied into the ring first.
    RingCopied,
    /// AF_XDP, frames resident in its memory.
    Xdp,
    /// send() on a UDP socket.
    Udp,
    /// UDP, MSG_ZEROCOPY, the notification awaited after each send: the published zc.
    Zc,
    /// UDP, MSG_ZEROCOPY, notifications read a batch at a time: the published recvmmsg.
    ZcBatched,
    /// UDP, io_uring SEND_ZC.
    SendZc,
    /// UDP, io_uring SEND_ZC with registered memory.
    SendZcFixed,
    /// UDP, the library chooses between copying and lending.
    Auto,
}

/// Which columns can be compared with each other: same socket, same work but for the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Whole frames.
    Frames,
    /// UDP payloads.
    Udp,
}

impl Column {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 11] = [
        Self::Send,
        Self::Sendmmsg,
        Self::Ring,
        Self::RingCopied,
        Self::Xdp,
        Self::Udp,
        Self::Zc,
        Self::ZcBatched,
        Self::SendZc,
        Self::SendZcFixed,
        Self::Auto,
    ];

    /// Its word in `--columns` and in JSON, and its heading.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Sendmmsg => "sendmmsg",
            Self::Ring => "ring",
            Self::RingCopied => "ring-copied",
            Self::Xdp => "xdp",
            Self::Udp => "udp",
            Self::Zc => "zc",
            Self::ZcBatched => "zc-batched",
            Self::SendZc => "send-zc",
            Self::SendZcFixed => "send-zc-fixed",
            Self::Auto => "auto",
        }
    }

    /// What it does, for the legend.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Send => "packet socket, send(), copying",
            Self::Sendmmsg => "packet socket, sendmmsg(), copying",
            Self::Ring => "PACKET_TX_RING, payload resident in the ring, headers built in place",
            Self::RingCopied => "PACKET_TX_RING, each frame copied into the ring",
            Self::Xdp => "AF_XDP in copy mode, frames resident in its memory",
            Self::Udp => "UDP, send(), copying",
            Self::Zc => "UDP, MSG_ZEROCOPY, each notification awaited (published: zc)",
            Self::ZcBatched => {
                "UDP, MSG_ZEROCOPY, notifications read a batch at a time (published: recvmmsg)"
            }
            Self::SendZc => "UDP, io_uring SEND_ZC, a batch at a time",
            Self::SendZcFixed => "UDP, io_uring SEND_ZC from registered memory",
            Self::Auto => "UDP, the library chooses by measurement",
        }
    }

    /// What it can be compared with.
    pub fn family(self) -> Family {
        match self {
            Self::Send | Self::Sendmmsg | Self::Ring | Self::RingCopied | Self::Xdp => Family::Frames,
            _ => Family::Udp,
        }
    }

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

    /// The copying column of its family.
    pub fn copying(self) -> Self {
        match self.family() {
            Family::Frames => Self::Send,
            Family::Udp => Self::Udp,
        }
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Column {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|column| column.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("column '{text}': choose from {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_unknown_ones_get_the_list() {
        for column in Column::ALL {
            assert_eq!(column.name().parse(), Ok(column));
            assert_eq!(serde_json::to_value(column).unwrap(), column.name());
            assert_eq!(column.copying().family(), column.family());
        }
        let error = "fast".parse::<Column>().unwrap_err();
        assert!(error.contains("'fast'") && error.contains("send-zc-fixed, auto"));
    }
}
