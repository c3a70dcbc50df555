//! Receives by copying, for programs that want their bytes elsewhere.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use super::connection::{Dequeued, MappedConnection};
use super::lease::WindowLease;
use crate::ledger::CopyReason;
use zerowire_sys::lock;
use zerowire_sys::volatile::ByteRoom;

/// A window that is read in pieces.
#[derive(Debug)]
pub(super) struct Cursor {
    window: WindowLease,
    /// The packet.
    packet: usize,
    /// Bytes of it that were taken.
    taken: usize,
    /// Bytes of all packets that were not.
    pub(super) left: u64,
}

/// What one look at the windows gave.
struct ReadPiece {
    bytes: usize,
    flags: u32,
    /// The packet has no more bytes.
    packet_ends: bool,
}

impl Cursor {
    /// Copies from one packet.
    fn piece(&mut self, to: &mut ByteRoom<'_>) -> Option<ReadPiece> {
        let packet = self.window.packet(self.packet)?;
        let bytes = packet.copy_into(self.taken, to);
        self.taken += bytes;
        self.left -= bytes as u64;
        let piece = ReadPiece { bytes, flags: packet.flags(), packet_ends: self.taken == packet.len() };
        if piece.packet_ends {
            self.packet += 1;
            self.taken = 0;
        }
        Some(piece)
    }
}

impl MappedConnection {
    /// One piece of a packet, or None at the end.
    fn piece(&self, to: &mut ByteRoom<'_>) -> io::Result<Option<ReadPiece>> {
        loop {
            let mut state = lock(&self.state);
            if let Some(cursor) = &mut state.cursor {
                let piece = cursor.piece(to);
                if cursor.left == 0 {
                    state.cursor = None;
                }
                if let Some(piece) = piece {
                    self.ledger.copied(CopyReason::Asked, piece.bytes as u64);
                    self.ledger.frames.add(u64::from(piece.packet_ends));
                    return Ok(Some(piece));
                }
            }
            match self.take(&mut state)? {
                Dequeued::Window(window) => {
                    let left = window.len();
                    state.cursor = Some(Cursor { window, packet: 0, taken: 0, left });
                }
                Dequeued::End => return Ok(None),
                Dequeued::NotYet if self.nonblocking.load(Ordering::Relaxed) => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Dequeued::NotYet => {
                    drop(state);
                    self.wait(None)?;
                }
            }
        }
    }

    /// Appends a whole message to `to`: the bytes up to the end of the message, also over several
    /// windows. Returns its flags (1 end of message, 2 end of record), or None at the end of the
    /// connection.
    ///
    /// # Errors
    /// WouldBlock on a connection that does not block; then `to` may have a part, and the next call
    /// appends the rest.
    pub fn read_message(&self, to: &mut Vec<u8>) -> io::Result<Option<u32>> {
        const STEP: usize = 64 << 10;
        loop {
            let at = to.len();
            to.resize(at + STEP, 0);
            let piece = self.piece(&mut (&mut to[at..]).into());
            to.truncate(at + piece.as_ref().map_or(0, |p| p.as_ref().map_or(0, |p| p.bytes)));
            match piece? {
                Some(p) if p.packet_ends && p.flags != 0 => return Ok(Some(p.flags)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

impl Read for &MappedConnection {
    /// Copies what has come, and waits if nothing has (but see
    /// [`MappedConnection::set_nonblocking`]); 0 at the end. Of messages, one call never gives
    /// bytes of two.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.read_into(to.into())
    }
}

impl MappedConnection {
    /// As [`Read::read`], to memory that may not have been written yet. As many bytes as are
    /// returned were written.
    ///
    /// # Errors
    /// As [`Read::read`]: [`io::ErrorKind::WouldBlock`] where reads don't wait, else an
    /// [`Error`](super::Error) in an [`io::Error`].
    pub fn read_uninit(&self, to: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        self.read_into(to.into())
    }

    fn read_into(&self, mut to: ByteRoom<'_>) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        let mut n = 0;
        while n < to.len() {
            // What is there already is returned without waiting for more.
            if n > 0 && !self.readable() {
                break;
            }
            match self.piece(&mut to.behind(n)) {
                Ok(Some(piece)) => {
                    n += piece.bytes;
                    if piece.packet_ends && piece.flags != 0 {
                        break;
                    }
                }
                Ok(None) => break,
                // What was copied comes first; the error comes again with the next call.
                Err(_) if n > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(n)
    }

    fn readable(&self) -> bool {
        lock(&self.state).cursor.is_some() || self.poll_value() != zerowire_wire::mapped::POLL_NOTHING
    }
}
