//! The way to the guest: plain sends on the connection's socket.

use std::io::{self, Write};
use std::net::Shutdown;
use std::sync::atomic::Ordering;

use rustix::net::SendFlags;

use super::connection::MappedConnection;
use zerowire_wire::mapped::READS_NO_MORE_AT;

impl MappedConnection {
    /// Ends one direction. `Write`: the guest sees the end of the stream behind all that was
    /// written. `Read`: the guest learns that nothing more is read. Windows that are published
    /// stay, the end comes behind them, and what the guest sent beyond them is lost.
    ///
    /// # Errors
    /// What pwrite(2) or shutdown(2) says.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.reads_no_more.store(true, Ordering::Relaxed);
            // By the file, since the connection may not be mapped.
            let word = 1u32.to_le_bytes();
            rustix::io::pwrite(&self.core.headers, &word, READS_NO_MORE_AT as u64)?;
            // The only error is a full counter, which wakes the daemon as well.
            let _ = rustix::io::write(&self.core.released, &1u64.to_ne_bytes());
        }
        shutdown(&self.sockets.stream, how)
    }
}

pub(super) fn shutdown(socket: &impl std::os::fd::AsFd, how: Shutdown) -> io::Result<()> {
    let how = match how {
        Shutdown::Read => rustix::net::Shutdown::Read,
        Shutdown::Write => rustix::net::Shutdown::Write,
        Shutdown::Both => rustix::net::Shutdown::Both,
    };
    Ok(rustix::net::shutdown(socket, how)?)
}

impl Write for &MappedConnection {
    /// Sends to the guest; on a connection of messages one call is one message.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.sockets.stream, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

by_reference!(MappedConnection);
