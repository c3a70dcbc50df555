//! From the first connection to the last byte.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use serde::Serialize;
use zerowire::recv::{Arrival, ConnectionId, Lease, ListenerId, Receiver, What};

use super::output::{Output, Outputs};
use crate::progress::TransferProgress;
use crate::stop::TransferStop;

/// How often to look for a signal.
const TICK: Duration = Duration::from_millis(100);
/// Connections that are listed one by one in the result; the others are counted.
const LISTED: usize = 1000;

/// When to end.
pub struct Told {
    /// After this many connections have ended.
    pub connections: Option<usize>,
    /// When this many bytes have come.
    pub bytes: Option<u64>,
    /// When nothing has come for this long, with an error.
    pub timeout: Option<Duration>,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionState {
    /// It was still open at the end.
    Open,
    /// The peer has sent all.
    Ended,
    /// It failed.
    Failed,
}

/// A connection in the result.
#[derive(Clone, Debug, Serialize)]
pub struct Connection {
    /// The other side, if the system still knew it.
    pub peer: Option<SocketAddr>,
    /// Bytes that came.
    pub bytes: u64,
    /// What became of it.
    pub state: ConnectionState,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One that is open.
struct Live {
    connection: Connection,
    output: Option<Output>,
}

/// Counts of connections.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    /// Taken.
    pub accepted: u64,
    /// Of these, ended by the peer.
    pub ended: u64,
    /// Of these, failed.
    pub failed: u64,
}

/// See the module.
pub struct Session {
    told: Told,
    outputs: Outputs,
    listener: Option<ListenerId>,
    live: HashMap<ConnectionId, Live>,
    pending: Vec<Lease>,
    /// Bytes of all connections.
    pub bytes: u64,
    /// How many.
    pub counts: Counts,
    /// The first of those that are over.
    pub over: Vec<Connection>,
    /// When the first connection came, and the last byte or end.
    pub span: Option<(Instant, Instant)>,
    first_failure: Option<String>,
}

impl Session {
    /// `listener` is the receiver's.
    pub fn new(told: Told, outputs: Outputs, listener: ListenerId) -> Self {
        Self {
            told,
            outputs,
            listener: Some(listener),
            live: HashMap::new(),
            pending: Vec::new(),
            bytes: 0,
            counts: Counts::default(),
            over: Vec::new(),
            span: None,
            first_failure: None,
        }
    }

    /// Receives until it is time to end.
    pub fn run(
        &mut self,
        receiver: &mut Receiver,
        stop: &TransferStop,
        progress: &mut TransferProgress,
        begin: Instant,
    ) -> Result<()> {
        let mut batch = Vec::new();
        let mut last = begin;
        while stop.signal().is_none() && !self.is_done() {
            let count = receiver.recv(&mut batch, Some(TICK))?;
            let now = Instant::now();
            if count > 0 {
                last = now;
                self.span = Some((self.span.map_or(now, |(first, _)| first), now));
            } else if let Some(timeout) = self.told.timeout
                && now - last >= timeout
            {
                bail!(
                    "timed out: nothing has come for {} s (--timeout), after {} bytes of {} connections",
                    timeout.as_secs_f64(),
                    self.bytes,
                    self.counts.accepted
                );
            }
            self.take(receiver, &mut batch, stop)?;
            progress.set(self.bytes);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let over = self.counts.ended + self.counts.failed;
        self.told.bytes.is_some_and(|n| self.bytes >= n)
            || self.told.connections.is_some_and(|n| over >= n as u64)
    }

    /// One batch. The pieces of a connection that follow each other are written together.
    fn take(&mut self, receiver: &mut Receiver, batch: &mut Vec<Arrival>, stop: &TransferStop) -> Result<()> {
        let mut of = None;
        for Arrival { connection, what } in batch.drain(..) {
            if of != Some(connection) || !matches!(what, What::Data(_)) {
                self.write(of, stop)?;
                of = None;
            }
            match what {
                What::Accepted(_) => self.accepted(receiver, connection, stop)?,
                What::Data(lease) => {
                    let Some(live) = self.live.get_mut(&connection) else { continue };
                    live.connection.bytes += lease.len() as u64;
                    self.bytes += lease.len() as u64;
                    if live.output.is_some() {
                        self.pending.push(lease);
                        of = Some(connection);
                    }
                }
                What::End => self.ended(receiver, connection, None),
                What::Failed(e) => self.ended(receiver, connection, Some(e)),
            }
        }
        self.write(of, stop)
    }

    fn write(&mut self, of: Option<ConnectionId>, stop: &TransferStop) -> Result<()> {
        let output = of.and_then(|id| self.live.get_mut(&id)).and_then(|live| live.output.as_mut());
        if let Some(output) = output {
            output.write(&self.pending, stop)?;
        }
        self.pending.clear();
        Ok(())
    }

    fn accepted(&mut self, receiver: &mut Receiver, id: ConnectionId, stop: &TransferStop) -> Result<()> {
        if self.told.connections.is_some_and(|n| self.counts.accepted >= n as u64) {
            // It came before accepting was stopped.
            receiver.remove(id)?;
            return Ok(());
        }
        let peer = receiver
            .socket(id)
            .and_then(|socket| rustix::net::getpeername(socket).ok()?)
            .and_then(|address| SocketAddr::try_from(address).ok())
            .map(canonical);
        self.counts.accepted += 1;
        let output = self.outputs.next(self.counts.accepted, stop)?;
        let connection = Connection { peer, bytes: 0, state: ConnectionState::Open, error: None };
        self.live.insert(id, Live { connection, output });
        if self.told.connections == Some(self.counts.accepted as usize)
            && let Some(listener) = self.listener.take()
        {
            drop(receiver.unlisten(listener)?);
        }
        Ok(())
    }

    fn ended(&mut self, receiver: &mut Receiver, id: ConnectionId, error: Option<io::Error>) {
        // Closing tells the peer. The connection is over, so that nothing can come with it.
        drop(receiver.remove(id));
        let Some(Live { mut connection, .. }) = self.live.remove(&id) else { return };
        match error {
            None => {
                connection.state = ConnectionState::Ended;
                self.counts.ended += 1;
            }
            Some(e) => {
                connection.state = ConnectionState::Failed;
                connection.error = Some(e.to_string());
                self.counts.failed += 1;
                let peer = connection.peer.map_or("a connection".to_owned(), |p| p.to_string());
                self.first_failure.get_or_insert(format!("{peer}: {e}"));
            }
        }
        self.keep(connection);
    }

    fn keep(&mut self, connection: Connection) {
        if self.over.len() < LISTED {
            self.over.push(connection);
        }
    }

    /// The error for connections that failed.
    pub fn failed_connections(&self) -> Option<anyhow::Error> {
        let first = self.first_failure.as_ref()?;
        let Counts { accepted, failed, .. } = self.counts;
        Some(anyhow!("{failed} of {accepted} connections failed, the first: {first}"))
    }

    /// All connections, those that are open last.
    pub fn connections(mut self) -> Vec<Connection> {
        let open: Vec<_> = self.live.drain().map(|(_, live)| live.connection).collect();
        open.into_iter().for_each(|c| self.keep(c));
        self.over
    }
}

/// An IPv4 address that a socket of IPv6 shows as its own is one of IPv4 again. Others keep their
/// scope, which a link-local address needs.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_named_so_that_it_can_be_connected_to() {
        for (address, want) in [
            ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
            ("[fe80::1%3]:80", "[fe80::1%3]:80"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            let address: SocketAddr = address.parse().expect("an address");
            assert_eq!(serde_json::json!(canonical(address)), want);
        }
    }
}
