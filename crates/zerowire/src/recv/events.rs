//! What happened besides bytes.

use serde::Serialize;

/// How far the ledger's `zero_copied_bytes` can be believed:
/// [`Receiver::zero_copied`](super::Receiver::zero_copied).
///
/// For a NIC's queue, the ledger subtracts the bytes that the kernel counts as copied, and the
/// kernel doesn't count all of them (io_uring/zcrx.c: `io_zcrx_copy_frag` counts, the copy of a
/// frame's linear part in `io_zcrx_recv_skb` doesn't).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ZeroCopied {
    /// Exactly these: the kernel copies all, or told of each piece that it mapped it.
    #[default]
    Exact,
    /// At most these. The kernel counts what it copies of a frame's fragments (the frame came
    /// through another queue, no free buffer, loopback). It doesn't count what it copies of the
    /// linear part (headers too long, no header split).
    AtMost,
    /// Nobody knows; the number is that of all bytes. The kernel counts no copies (before Linux
    /// 7.2).
    Unknown,
}

/// Numbers of what happened in a receiver since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Events {
    /// Receives that found no buffer: the program held too many leases, or more data came at once
    /// than buffers waited. Nothing is lost; the connections wait.
    pub out_of_buffers: u64,
    /// Times a connection was paused since its leases held its share of the buffers.
    pub paused: u64,
    /// Arrivals that the kernel copied although the NIC was to place them (zcrx; without a device
    /// all but what lies in a frame's linear part). Copies out of the linear part are not counted,
    /// see [`ZeroCopied`].
    pub copied: u64,
    /// Completions by which the kernel said that it copied or found no buffer (zcrx, Linux 7.2). It
    /// says so once, until the receiver asks again, now and then.
    pub notices: u64,
    /// Times that io_uring's completion queue was full, and the kernel kept completions on its own
    /// list.
    pub overflows: u64,
    /// Buffers that came back from the program.
    pub refills: u64,
    /// Receives that were started (io_uring).
    pub armed: u64,
    /// Connections that were accepted from listening sockets.
    pub accepted: u64,
    /// Times that accepting stopped since there were as many connections as the receiver may have.
    pub accept_pauses: u64,
    /// Waits that went on beyond the first arrival to gather more
    /// ([`RecvOptions::gather`](super::RecvOptions::gather)).
    pub gathered: u64,
    /// System calls, all of them.
    pub system_calls: u64,
}
