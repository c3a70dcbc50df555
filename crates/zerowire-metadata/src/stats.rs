//! Counters of one service.

/// Frames, since the service was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// Frames taken from the guest.
    pub frames_in: u64,
    /// Bytes of these frames; each was copied once.
    pub bytes_in: u64,
    /// Frames made for the guest.
    pub frames_out: u64,
    /// Bytes of these frames, Ethernet headers included.
    pub bytes_out: u64,
    /// Frames from the guest dropped because the queue was full.
    pub dropped_queue_full: u64,
    /// Frames from the guest dropped because they are malformed, fragments,
    /// too long, or from an address that no host can have.
    pub dropped_malformed: u64,
    /// Frames for the guest dropped: no room, or the MAC address of the
    /// receiver was forgotten.
    pub dropped_out: u64,
}

/// Counters since the service was made, and gauges of the present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Frames in both directions; its counters stand beside the others in JSON.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Connections accepted.
    pub connections_opened: u64,
    /// Connection attempts dropped because all slots were busy.
    pub connections_refused: u64,
    /// Idle connections given up for a new one.
    pub connections_evicted: u64,
    /// Connections ended by a time limit.
    pub connections_timed_out: u64,
    /// Requests answered, with whatever status.
    pub requests: u64,
    /// Answers with a status from 400 to 499.
    pub client_errors: u64,
    /// Answers with 401: a token was missing, wrong or expired.
    pub unauthorized: u64,
    /// Tokens given out.
    pub tokens_issued: u64,
    /// Gauge: connections now.
    pub connections: usize,
    /// Gauge: bytes of buffers, queues and tokens now.
    pub buffered_bytes: usize,
}
