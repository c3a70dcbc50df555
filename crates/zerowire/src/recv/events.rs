//! What happened besides bytes.

use serde::Serialize;

/// Numbers of what happened in a receiver since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Events {
    /// Receives that found no buffer: the program held too many leases, or more data came at once than buffers waited.
    /// Nothing is lost; the connections wait.
    pub out_of_buffers: u64,
    /// Times a connection was paused since its leases held its share of the buffers.
    pub paused: u64,
    /// Arrivals that the kernel copied although the NIC was to place them (zcrx; without a device all but what lies in a
    /// frame's linear part, which the kernel doesn't count).
    pub copied: u64,
    /// Times that the kernel told by a completion of its own that it copied or found no buffer (zcrx, Linux 7.2). It tells
    /// once, and is asked again now and then.
    pub notices: u64,
    /// Times that io_uring's completion queue was full, and the kernel kept completions on its own list.
    pub overflows: u64,
    /// Buffers that came back from the program.
    pub refills: u64,
    /// Receives that were started (io_uring).
    pub armed: u64,
    /// Connections that were accepted from listening sockets.
    pub accepted: u64,
    /// Times that accepting stopped since there were as many connections as the receiver may have.
    pub accept_pauses: u64,
    /// System calls, all of them.
    pub system_calls: u64,
}
