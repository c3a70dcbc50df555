//! The bytes of a capture, a window at a time.
//!
//! The window owns its buffer; what it shows stays valid until the next call that reads or
//! consumes. Its size is bounded by the longest piece that one call needs, which callers bound
//! ([`super::error::MAX_BLOCK_BYTES`]).

use std::io::{self, Read};

/// Bytes asked of the reader at once: long reads make system calls rare.
const READ_BYTES: usize = 256 << 10;

/// A buffer that slides over a reader.
pub struct SlidingBuffer<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Position of the window's first byte, `start`, in the (unpacked) stream.
    pub offset: u64,
    ended: bool,
    /// True: the reader's own format ended too early, a gzip stream without its end.
    pub is_cut: bool,
}

impl<R: Read> SlidingBuffer<R> {
    /// A window at the beginning of what `reader` gives.
    pub fn new(reader: R) -> Self {
        Self { reader, buffer: Vec::new(), start: 0, end: 0, offset: 0, ended: false, is_cut: false }
    }

    /// What is in the window.
    pub fn data(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads until the window holds `len` bytes. False: the stream ends before, and the window
    /// holds the rest.
    pub fn need(&mut self, len: usize) -> io::Result<bool> {
        while self.end - self.start < len {
            if self.ended {
                return Ok(false);
            }
            self.make_room(len);
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A decompressor's word for a stream without its end. What came before is good.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    self.ended = true;
                    self.is_cut = true;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Moves the window's beginning by `len` bytes, which it must hold.
    pub fn consume(&mut self, len: usize) {
        let len = len.min(self.end - self.start);
        self.start += len;
        self.offset += len as u64;
    }

    /// Passes over `len` bytes, however many. False where the stream ends before.
    pub fn skip(&mut self, mut len: u64) -> io::Result<bool> {
        while len > 0 {
            if self.end == self.start && !self.need(1)? {
                return Ok(false);
            }
            let step = usize::try_from(len).unwrap_or(usize::MAX).min(self.end - self.start);
            self.consume(step);
            len -= step as u64;
        }
        Ok(true)
    }

    /// Room for `len` bytes from `start`, and some to read into.
    fn make_room(&mut self, len: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.buffer.len() - self.start < len || self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            let want = len.max(READ_BYTES);
            if self.buffer.len() < want {
                // Of a new buffer, no page that is not read into is touched.
                let mut longer = vec![0; want];
                longer[..self.end].copy_from_slice(&self.buffer[..self.end]);
                self.buffer = longer;
            }
        }
    }
}

#[cfg(test)]
mod tests;
