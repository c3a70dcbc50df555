//! How a sender works.

use serde::Serialize;
use std::time::Duration;
use zerowire_wire::setters;

/// Whether payloads are copied or lent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SendMode {
    /// The kernel copies each payload before the call returns.
    Copy,
    /// Each payload is lent. Where the socket or the payload rules this out (an empty payload, a
    /// unix socket), it is copied and counted with the reason. Where a limit forbids it, the call
    /// fails and names the limit.
    ZeroCopy,
    /// By measurement, for each socket and class of lengths: see [`Choice`](super::Choice).
    #[default]
    Auto,
}

/// Which system calls send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SendBackend {
    /// io_uring when areas are given and the kernel allows it, plain socket calls otherwise, and on
    /// AF_VSOCK always. An area that can't be registered (RLIMIT_MEMLOCK) is sent from all the
    /// same, at the price of pinning its pages for each send. [`Sender::path`](super::Sender::path)
    /// says what was chosen and why.
    #[default]
    Auto,
    /// `send`, `sendmsg`, `sendmmsg`, with `MSG_ZEROCOPY`
    /// (Documentation/networking/msg_zerocopy.rst).
    Socket,
    /// io_uring's `SEND_ZC` and `SENDMSG_ZC`. An error where io_uring is not allowed. On AF_VSOCK
    /// it only copies, since its notifications don't say there what the kernel copied of lent
    /// memory.
    Uring,
}

/// How notifications are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Notifications {
    /// Several a system call, once in 32 lent payloads, when a limit is near, and when the caller
    /// polls or waits.
    #[default]
    Batched,
    /// [`Sender::send`](super::Sender::send) waits for each payload's notification before it
    /// returns, at most for [`SendOptions::timeout`]. Slow: for programs that want their memory
    /// back at once.
    ///
    /// A success says that the payload was taken. It is still lent if the time was over, or if the
    /// wait failed, which the next call tells: ask [`Sender::wait`](super::Sender::wait) with the
    /// ticket, or [`Sender::outstanding`](super::Sender::outstanding).
    EachOne,
}

/// How a sender works. `SendOptions::default()` chooses by measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendOptions {
    /// Copied or lent.
    pub mode: SendMode,
    /// Which system calls.
    pub backend: SendBackend,
    /// Bytes that may be lent at a time. One payload may always be lent, however long. Past this
    /// limit and the next one [`SendMode::ZeroCopy`] waits for memory to come back;
    /// [`SendMode::Auto`] copies what the socket has room for, which the ledger counts as held.
    pub max_lent_bytes: usize,
    /// Payloads that may be lent at a time, at least 1.
    pub max_lent: usize,
    /// On a UDP socket: each payload is cut into datagrams of this many bytes by the kernel or the
    /// NIC (`UDP_SEGMENT`, include/uapi/linux/udp.h). At most what the path takes in one packet
    /// ([`longest_segment`](super::longest_segment)).
    pub segment_bytes: Option<u16>,
    /// How notifications are read.
    pub notifications: Notifications,
    /// How long [`Sender::send`](super::Sender::send) waits for room, and then once more for the
    /// notification with [`Notifications::EachOne`]; `None`: as long as it takes.
    pub timeout: Option<Duration>,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self {
            mode: SendMode::Auto,
            backend: SendBackend::Auto,
            max_lent_bytes: 16 << 20,
            max_lent: 1024,
            segment_bytes: None,
            notifications: Notifications::Batched,
            timeout: None,
        }
    }
}

impl SendOptions {
    setters! {
        mode: SendMode,
        backend: SendBackend,
        max_lent_bytes: usize,
        max_lent: usize,
        segment_bytes: Option<u16>,
        notifications: Notifications,
        timeout: Option<Duration>,
    }
}
