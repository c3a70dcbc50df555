//! One TCP connection: requests in, responses out, time limits.
//!
//! A connection holds at most one response, and reads no further request before that is sent.
//! Pipelined requests wait in the receive buffer, which TCP flow control bounds.

use std::time::Duration;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::IpListenEndpoint;

use crate::http::{Context, MAX_HEAD_BYTES, Method, Parsed, Response, parse, respond, timeout};
use crate::stats::Stats;
use crate::wants::SERVICE_PORT;

/// TCP receive buffer: a request seldom has more than 1 KiB.
const RECEIVE_BYTES: usize = 4 * 1024;
/// TCP send buffer: what is in flight a round trip; user data streams through.
const SEND_BYTES: usize = 16 * 1024;

/// Time for the handshake to end: a few retransmissions.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Time for a next request to begin.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// Time idle before a connection may be given up for another: one that is just
/// made or reused has its request on the way.
const EVICTION_AGE: Duration = Duration::from_secs(1);
/// Time from the first byte of a request to the end of its head and body.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Time without an acknowledgement while a response is being sent.
const SEND_LIMIT: Duration = Duration::from_secs(30);
/// Time for the peer to close after the service did.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Time in TIME-WAIT; the TCP stack's own 10 seconds end it before.
const FINISHED_LIMIT: Duration = Duration::from_secs(15);

/// Hop limit of packets that follow a PUT on a connection, as EC2 sets it on answers to a PUT. The
/// guest's own stack takes them and forwards them to nobody. So no token leaves the guest by a
/// container's network, a NAT or an open proxy.
const TOKEN_HOP_LIMIT: u8 = 1;

/// What a connection waits for; each has its time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    Handshake,
    Idle,
    Request,
    Sending,
    Closing,
    Finished,
}

impl ConnectionPhase {
    fn limit(self) -> Duration {
        match self {
            Self::Handshake => HANDSHAKE_LIMIT,
            Self::Idle => IDLE_LIMIT,
            Self::Request => REQUEST_LIMIT,
            Self::Sending => SEND_LIMIT,
            Self::Closing => CLOSE_LIMIT,
            Self::Finished => FINISHED_LIMIT,
        }
    }
}

/// A connection and its part of the HTTP state; the socket lives in the set of
/// the TCP stack.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    pub(crate) handle: SocketHandle,
    /// Bytes of requests that aren't answered yet, at most [`MAX_HEAD_BYTES`].
    input: Vec<u8>,
    /// Whether `input` has grown by a line since it was last parsed.
    parse_due: bool,
    /// Bytes of a request body still to be skipped.
    skip: u64,
    response: Option<Response>,
    phase: ConnectionPhase,
    /// Changes with each step forward; the time limit starts anew with it.
    progress: (ConnectionPhase, u64),
    answered: u64,
    queued: u64,
    /// When a time limit is reached unless something happens before.
    pub(crate) deadline: Duration,
}

/// A socket that waits for one connection to the service.
pub(crate) fn listening_socket() -> Option<Socket<'static>> {
    let buffer = |len| SocketBuffer::new(vec![0; len]);
    let mut socket = Socket::new(buffer(RECEIVE_BYTES), buffer(SEND_BYTES));
    // Responses are written whole; holding back the last segment only delays.
    socket.set_nagle_enabled(false);
    // Each address of the interface is the service's.
    socket.listen(IpListenEndpoint { addr: None, port: SERVICE_PORT }).ok()?;
    Some(socket)
}

impl HttpConnection {
    pub(crate) fn new(handle: SocketHandle, now: Duration) -> Self {
        Self {
            handle,
            input: Vec::new(),
            parse_due: false,
            skip: 0,
            response: None,
            phase: ConnectionPhase::Handshake,
            progress: (ConnectionPhase::Handshake, 0),
            answered: 0,
            queued: 0,
            deadline: now.saturating_add(HANDSHAKE_LIMIT),
        }
    }

    /// Whether it could be given up for a new connection. It owes no answer, and it has been idle
    /// for long enough that no request is on its way.
    pub(crate) fn is_idle(&self, now: Duration) -> bool {
        self.phase == ConnectionPhase::Idle
            && now.saturating_add(IDLE_LIMIT) >= self.deadline.saturating_add(EVICTION_AGE)
    }

    /// Bytes of memory held, the socket's buffers included.
    pub(crate) fn buffered_bytes(&self) -> usize {
        let response = self.response.as_ref();
        RECEIVE_BYTES
            + SEND_BYTES
            + size_of::<Socket<'_>>()
            + self.input.capacity()
            + response.map_or(0, Response::buffered_bytes)
    }

    /// Does what can be done: sends, reads, answers, closes, applies limits.
    pub(crate) fn advance(&mut self, socket: &mut Socket<'_>, context: &mut Context<'_>) {
        let now = context.now;
        self.run(socket, context);
        self.update_phase(socket, now);
        if now >= self.deadline && socket.state() != State::Closed {
            context.stats.connections_timed_out += 1;
            self.time_out(socket, context.stats);
            self.update_phase(socket, now);
        }
    }

    fn run(&mut self, socket: &mut Socket<'_>, context: &mut Context<'_>) {
        if matches!(self.phase, ConnectionPhase::Closing | ConnectionPhase::Finished) {
            // What comes after the last answer is read and forgotten, so that
            // the peer gets to the answer instead of to a reset.
            discard(socket, u64::MAX);
            return;
        }
        // Each turn sends a response or uses up input, and both are bounded
        // by the buffers.
        loop {
            if self.response.is_some() {
                if !self.send(socket) {
                    return;
                }
                continue;
            }
            if self.skip > 0 {
                self.skip -= self.skip_input(socket);
                if self.skip > 0 {
                    break;
                }
            }
            self.read(socket);
            if !self.parse_due {
                break;
            }
            self.parse_due = false;
            match parse(&self.input) {
                Parsed::Partial => break,
                Parsed::Complete(head, len) => {
                    self.input.drain(..len);
                    // What follows may be a whole request already.
                    self.parse_due = !self.input.is_empty();
                    if head.method == Method::Put {
                        socket.set_hop_limit(Some(TOKEN_HOP_LIMIT));
                    }
                    let (response, skip) = respond(&head, context);
                    tracing::debug!(target = ?head.target, status = response.status, "metadata request");
                    self.skip = skip;
                    self.response = Some(response);
                }
                Parsed::Bad(bad) => self.response = Some(bad.response(context.stats)),
            }
        }
        // The peer has closed its half and nothing is left to answer.
        if socket.state() == State::CloseWait && !socket.can_recv() {
            self.close(socket);
        }
    }

    /// Hands on the response; true when all of it is in the send buffer.
    fn send(&mut self, socket: &mut Socket<'_>) -> bool {
        let Some(response) = &mut self.response else { return true };
        while !response.rest().is_empty() {
            match socket.send_slice(response.rest()) {
                Ok(0) => return false,
                Ok(count) => {
                    response.advance(count);
                    self.queued += count as u64;
                }
                // The connection is gone; the phase follows the socket.
                Err(_) => {
                    self.response = None;
                    return false;
                }
            }
        }
        let close = response.close;
        self.response = None;
        self.answered += 1;
        if close {
            self.close(socket);
            return false;
        }
        true
    }

    fn close(&mut self, socket: &mut Socket<'_>) {
        self.input = Vec::new();
        self.parse_due = false;
        self.phase = ConnectionPhase::Closing;
        socket.close();
    }

    /// Skips body bytes; returns how many.
    fn skip_input(&mut self, socket: &mut Socket<'_>) -> u64 {
        let here = self.input.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        self.input.drain(..here);
        here as u64 + discard(socket, self.skip - here as u64)
    }

    /// Reads what fits into the input.
    fn read(&mut self, socket: &mut Socket<'_>) {
        while self.input.len() < MAX_HEAD_BYTES && socket.can_recv() {
            let room = MAX_HEAD_BYTES - self.input.len();
            let input = &mut self.input;
            let read = socket.recv(|data| {
                let data = &data[..data.len().min(room)];
                input.extend_from_slice(data);
                (data.len(), data.contains(&b'\n'))
            });
            match read {
                // Only a line's end can complete a request; parsing at each
                // byte would cost the square of its length.
                Ok(line) => self.parse_due |= line || self.input.len() >= MAX_HEAD_BYTES,
                Err(_) => return,
            }
        }
    }

    /// Finds the phase and starts its time limit anew after each step forward.
    fn update_phase(&mut self, socket: &Socket<'_>, now: Duration) {
        self.phase = match socket.state() {
            State::Listen | State::SynSent | State::SynReceived => ConnectionPhase::Handshake,
            State::Established | State::CloseWait => {
                if self.response.is_some() || socket.send_queue() > 0 {
                    ConnectionPhase::Sending
                } else if self.skip > 0 || !self.input.is_empty() {
                    ConnectionPhase::Request
                } else {
                    ConnectionPhase::Idle
                }
            }
            State::TimeWait => ConnectionPhase::Finished,
            // Data that is still to be acknowledged may take its time.
            _ if socket.send_queue() > 0 => ConnectionPhase::Sending,
            _ => ConnectionPhase::Closing,
        };
        let closed = self.phase == ConnectionPhase::Sending
            && !matches!(socket.state(), State::Established | State::CloseWait);
        let acknowledged = self.queued.saturating_sub(socket.send_queue() as u64);
        let step = match self.phase {
            ConnectionPhase::Sending => acknowledged,
            ConnectionPhase::Idle | ConnectionPhase::Request => self.answered,
            ConnectionPhase::Handshake | ConnectionPhase::Closing | ConnectionPhase::Finished => 0,
        };
        if self.progress != (self.phase, step) {
            self.progress = (self.phase, step);
            self.deadline = now.saturating_add(self.phase.limit());
        }
        if closed {
            // Sending as far as time goes, closing as far as input goes.
            self.phase = ConnectionPhase::Closing;
        }
        if self.phase == ConnectionPhase::Idle {
            // An idle connection keeps no buffer of its own.
            self.input = Vec::new();
        }
    }

    fn time_out(&mut self, socket: &mut Socket<'_>, stats: &mut Stats) {
        match self.phase {
            ConnectionPhase::Idle => self.close(socket),
            ConnectionPhase::Request => {
                self.response = Some(timeout(stats));
                self.skip = 0;
                self.send(socket);
            }
            ConnectionPhase::Handshake
            | ConnectionPhase::Sending
            | ConnectionPhase::Closing
            | ConnectionPhase::Finished => {
                socket.abort();
            }
        }
    }
}

/// Reads and forgets at most `limit` bytes; returns how many.
fn discard(socket: &mut Socket<'_>, limit: u64) -> u64 {
    let mut discarded = 0;
    while discarded < limit && socket.can_recv() {
        let left = usize::try_from(limit - discarded).unwrap_or(usize::MAX);
        let Ok(count) = socket.recv(|data| {
            let count = data.len().min(left);
            (count, count)
        }) else {
            break;
        };
        discarded += count as u64;
    }
    discarded
}
