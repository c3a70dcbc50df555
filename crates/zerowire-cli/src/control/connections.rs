//! The connections of one door, and how many there may be.
//!
//! Where all places are taken, a new connection gets the one of the client that has kept its own
//! waiting for longest. So clients that stall keep nobody out. A connection whose request is being
//! carried out, or whose client reads a stream, is never closed for another one.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::Shutdown;
use zerowire_cli::lock;

/// Connections that read a stream at most.
const MAX_STREAMS: usize = 8;
/// How long a new connection waits until the threads of those end that have lost their place.
const END_TIME: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct ClientPlace {
    id: u64,
    socket: Arc<OwnedFd>,
    /// Since when its client is waited for; None while the server works for it.
    waits_since: Option<Instant>,
}

#[derive(Debug, Default)]
struct ClientList {
    places: Vec<ClientPlace>,
    next_id: u64,
    closed: bool,
}

/// All connections.
#[derive(Debug)]
pub struct Connections {
    list: Mutex<ClientList>,
    most: usize,
    /// Threads, those of connections included that have lost their place.
    threads: AtomicUsize,
    streams: AtomicUsize,
}

impl Connections {
    /// Places for `most` connections.
    pub fn new(most: usize) -> Arc<Self> {
        let (threads, streams) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { list: Mutex::default(), most, threads, streams })
    }

    /// A place for a connection. Gives the socket back where the server works for all others.
    pub fn enter(self: &Arc<Self>, socket: OwnedFd) -> Result<Connection, OwnedFd> {
        let start = Instant::now();
        while self.has_too_many_threads() && start.elapsed() < END_TIME {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut list = lock(&self.list);
        if list.closed || self.has_too_many_threads() {
            return Err(socket);
        }
        if list.places.len() >= self.most {
            let waiting = list.places.iter().enumerate();
            let longest = waiting.filter_map(|(at, p)| Some((p.waits_since?, at))).min();
            let Some((_, longest)) = longest else { return Err(socket) };
            let place = list.places.swap_remove(longest);
            // Its thread reads the end.
            let _ = rustix::net::shutdown(&place.socket, Shutdown::Both);
        }
        let (id, socket) = (list.next_id, Arc::new(socket));
        list.next_id += 1;
        list.places.push(ClientPlace { id, socket: socket.clone(), waits_since: Some(Instant::now()) });
        self.threads.fetch_add(1, Ordering::AcqRel);
        Ok(Connection { all: self.clone(), id, socket })
    }

    /// Whether as many threads run without a place as with one.
    fn has_too_many_threads(&self) -> bool {
        self.threads.load(Ordering::Acquire) >= 2 * self.most
    }

    /// Ends all connections; there will be no other. A client that is worked for gets its answer,
    /// and one that reads a stream gets the end of it.
    pub fn close(&self) {
        let mut list = lock(&self.list);
        list.closed = true;
        for place in &list.places {
            let how = if place.waits_since.is_some() { Shutdown::Both } else { Shutdown::Read };
            let _ = rustix::net::shutdown(&place.socket, how);
        }
    }

    /// Whether a thread of a connection runs.
    pub fn are_open(&self) -> bool {
        self.threads.load(Ordering::Acquire) > 0
    }
}

/// A connection with its place.
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    id: u64,
    pub(super) socket: Arc<OwnedFd>,
}

impl Connection {
    /// Says that the client is waited for, as long as `wait` takes.
    pub fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.set_waiting(Some(Instant::now()));
        let result = wait();
        self.set_waiting(None);
        result
    }

    fn set_waiting(&self, since: Option<Instant>) {
        if let Some(place) = lock(&self.all.list).places.iter_mut().find(|p| p.id == self.id) {
            place.waits_since = since;
        }
    }

    /// The right to read a stream, as long as the value lives; None where enough do.
    pub fn begin_stream(&self) -> Option<StreamPlace<'_>> {
        let one_more = |n: usize| (n < MAX_STREAMS).then_some(n + 1);
        let streams = &self.all.streams;
        streams.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(StreamPlace(streams))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.all.list).places.retain(|p| p.id != self.id);
        self.all.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One of the connections that read a stream.
pub struct StreamPlace<'a>(&'a AtomicUsize);

impl Drop for StreamPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
