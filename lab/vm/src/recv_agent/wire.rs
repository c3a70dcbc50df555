//! Senders over loopback, and the book of what came of them.

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use zerowire::recv::{Arrival, ConnectionId, Receiver, What};
use zerowire_vmtest::vsock::job::{Load, send_load};
use zerowire_vmtest::vsock::pattern::Pattern;

/// For one batch. A guest under emulation is slow; nothing depends on the length.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A thread that sends, and gives its socket back.
pub type Sending = JoinHandle<Result<TcpStream>>;

/// A connection over loopback whose other end sends the load and then ends; the thread returns its
/// socket.
pub fn sender(load: Load) -> Result<(OwnedFd, Sending)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let stream = TcpStream::connect(listener.local_addr()?).context("connect")?;
    let (socket, _) = listener.accept().context("accept")?;
    stream.set_nodelay(true)?;
    let thread = std::thread::spawn(move || {
        send_load(&stream, load)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        Ok(stream)
    });
    Ok((socket.into(), thread))
}

/// What is known of a connection.
#[derive(Debug)]
struct BookEntry {
    load: Load,
    got: u64,
    ended: bool,
}

/// Connections and what came of them; every byte is compared.
#[derive(Debug, Default)]
pub struct Book {
    entries: HashMap<ConnectionId, BookEntry>,
}

impl Book {
    pub fn add(&mut self, id: ConnectionId, load: Load) {
        self.entries.insert(id, BookEntry { load, got: 0, ended: false });
    }

    /// Bytes that came of a connection.
    pub fn got(&self, id: ConnectionId) -> u64 {
        self.entries.get(&id).map_or(0, |e| e.got)
    }

    /// Whether a connection has ended.
    pub fn has_ended(&self, id: ConnectionId) -> bool {
        self.entries.get(&id).is_some_and(|e| e.ended)
    }

    /// Compares one arrival.
    pub fn note(&mut self, arrival: &Arrival) -> Result<()> {
        let id = arrival.connection;
        let entry = self.entries.get_mut(&id).with_context(|| format!("unknown connection {id}"))?;
        ensure!(!entry.ended, "{id}: something came after the end");
        match &arrival.what {
            What::Data(lease) => {
                ensure!(!lease.is_empty(), "{id}: an empty piece of a stream");
                if let Some(place) = Pattern::new(entry.load.seed).first_difference(entry.got, lease) {
                    bail!("{id}: byte {place} is wrong, in a piece of {} at {}", lease.len(), entry.got);
                }
                entry.got += lease.len() as u64;
                ensure!(entry.got <= entry.load.bytes, "{id}: more came than was sent");
            }
            What::End => {
                entry.ended = true;
                ensure!(entry.got == entry.load.bytes, "{id}: {} of {} came", entry.got, entry.load.bytes);
            }
            What::Accepted(listener) => bail!("{id}: nobody gave listener {listener}"),
            What::Failed(error) => bail!("{id}: {error} after {} bytes", entry.got),
        }
        Ok(())
    }

    /// Whether all have ended.
    pub fn is_complete(&self) -> bool {
        self.entries.values().all(|e| e.ended)
    }

    /// Bytes of all.
    pub fn total(&self) -> u64 {
        self.entries.values().map(|e| e.got).sum()
    }

    /// Receives until all have ended; leases go back at once.
    pub fn complete(&mut self, receiver: &mut Receiver) -> Result<()> {
        let mut batch = Vec::new();
        while !self.is_complete() {
            self.turn(receiver, &mut batch)?;
            batch.clear();
        }
        Ok(())
    }

    /// One batch, which is added to `batch`.
    pub fn turn(&mut self, receiver: &mut Receiver, batch: &mut Vec<Arrival>) -> Result<()> {
        let before = batch.len();
        let count = receiver.recv(batch, Some(PATIENCE))?;
        ensure!(count > 0, "nothing came in {PATIENCE:?}; {:?}, {:?}", self.entries, receiver.events());
        batch[before..].iter().try_for_each(|a| self.note(a))
    }
}

/// Adds senders to a receiver.
pub fn add_all(
    receiver: &mut Receiver,
    book: &mut Book,
    loads: impl IntoIterator<Item = Load>,
) -> Result<(Vec<ConnectionId>, Vec<Sending>)> {
    let (mut ids, mut threads) = (Vec::new(), Vec::new());
    for load in loads {
        let (socket, thread) = sender(load)?;
        let id = receiver.add(socket)?;
        book.add(id, load);
        ids.push(id);
        threads.push(thread);
    }
    Ok((ids, threads))
}

/// Every sender has sent all.
pub fn join(threads: Vec<Sending>) -> Result<()> {
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a sender panicked"))?.context("a sender")?;
    }
    Ok(())
}
