//! The way to the guest: plain sends on the connection's socket.

use std::io::{self, Write};
use std::net::Shutdown;

use rustix::net::SendFlags;

use super::connection::Connection;

impl Connection {
    /// Ends one direction. `Write`: the guest sees the end of the stream behind all that was written. `Read`: nothing more is
    /// wanted from the guest; windows that are published stay.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        shutdown(&self.socket, how)
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

impl Write for &Connection {
    /// Sends to the guest; on a connection of messages one call is one message.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
