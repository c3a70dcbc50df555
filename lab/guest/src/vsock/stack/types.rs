//! What callers of a stack see: settings, states, counters.

/// Settings of a stack.
#[derive(Clone, Copy, Debug)]
pub struct StackOptions {
    /// Bytes that each connection can hold. The peer gets this figure.
    pub buf_alloc: u32,
    /// Whether a send that finds no credit asks the peer for some, once until
    /// some comes. Linux does not ask: the peer tells of free space by itself.
    pub ask_credit: bool,
    /// Connections that may wait for [`VsockStack::accept`](super::VsockStack::accept) at a port;
    /// more are refused.
    pub backlog: usize,
}

impl Default for StackOptions {
    fn default() -> Self {
        StackOptions { buf_alloc: 256 << 10, ask_credit: true, backlog: 1024 }
    }
}

/// Names a connection of one stack. No other one ever gets the same name.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnId(pub(super) u64);

/// State of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnState {
    /// The request is on its way.
    Connecting,
    /// Both sides agreed.
    Established,
    /// Shut down here in both directions; the peer's RST is awaited (virtio
    /// 1.3 §5.10.6.5).
    Closing,
    /// Ended in order, or unknown.
    Closed,
    /// The request was answered by RST.
    Refused,
    /// Ended by an RST out of order.
    Reset,
}

impl ConnState {
    /// Whether the peer may have the connection, too.
    pub(super) fn is_live(self) -> bool {
        matches!(self, ConnState::Connecting | ConnState::Established | ConnState::Closing)
    }
}

/// What a read brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// This many bytes; of a SEQPACKET connection one message.
    Data(usize),
    /// A message of this many bytes that ended a record (flag EOR).
    Record(usize),
    /// Nothing yet.
    Empty,
    /// The peer sends no more, and all was read.
    End,
}

/// What happens to payload that arrives.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Drain {
    /// It is kept for [`VsockStack::recv`](super::VsockStack::recv).
    #[default]
    Off,
    /// It is counted and never looked at.
    Count,
    /// It is counted and summed up ([`crate::vsock::StreamSum`]).
    Sum,
}

/// What was drained from a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Drained {
    /// Bytes of payload.
    pub bytes: u64,
    /// Ends of messages.
    pub messages: u64,
    /// Sum of the bytes ([`Drain::Sum`]).
    pub sum: u64,
}

/// What a stack has seen and said.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StackCounters {
    /// Packets of no connection, answered by RST.
    pub stray: u64,
    /// Connections that were reset, or refused, because their peer broke a
    /// rule: [`VsockStack::last_fault`](super::VsockStack::last_fault).
    pub faults: u64,
    /// RST packets of no connection.
    pub stray_resets: u64,
    /// RST packets sent.
    pub resets_sent: u64,
    /// CREDIT_UPDATE packets sent.
    pub credit_updates_sent: u64,
    /// CREDIT_UPDATE packets received.
    pub credit_updates_received: u64,
    /// Bytes of payload sent.
    pub payload_sent: u64,
}
