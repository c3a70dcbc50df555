//! Reads a capture while it is sent. A thread of its own reads, unpacks and checks, some chunks
//! ahead of the sender.
//!
//! So the sender never waits inside a read: a pipe may be silent for long, while frames that were
//! taken from it are due. Memory is bounded by [`CHUNKS`] times [`CHUNK_BYTES`] and the longest
//! packet.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::feed::Peek;
use super::load::{CaptureReader, Known, LoadedFrame};
use super::store::ReplayFrame;

/// Chunks that wait for the sender.
const CHUNKS: usize = 4;

/// Bytes of frames after which a chunk goes to the sender, whether or not there is more to read.
const CHUNK_BYTES: usize = 1 << 20;

/// Frames of a chunk.
const CHUNK_FRAMES: usize = 8192;

/// Frames in a row.
struct Chunk {
    /// What was read, and where each frame ends in `bytes`.
    frames: Vec<(LoadedFrame, usize)>,
    bytes: Vec<u8>,
    /// What is known of the capture so far.
    known: Known,
    /// The capture ends behind these frames, well or with an error.
    end: Option<Result<()>>,
}

/// The sender's end.
pub struct Ahead {
    from: Receiver<Chunk>,
    chunk: Chunk,
    /// The next frame of the chunk, and where it begins.
    next: usize,
    at: usize,
    /// Its place in the capture.
    index: usize,
}

impl Ahead {
    /// Starts to read `source`, of which `known` is known and the first `index` frames were taken.
    pub fn start(source: CaptureReader, known: Known, index: usize) -> Result<Self> {
        let (to, from) = sync_channel(CHUNKS);
        let chunk = Chunk { frames: Vec::new(), bytes: Vec::new(), known: known.clone(), end: None };
        std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || read(source, known, &to))
            .context("no thread to read the capture")?;
        Ok(Self { from, chunk, next: 0, at: 0, index })
    }

    /// The next frame, if it is there.
    pub fn peek(&mut self) -> Result<Peek<'_>> {
        while self.next == self.chunk.frames.len() {
            match self.chunk.end.take() {
                Some(Ok(())) => {
                    self.chunk.end = Some(Ok(()));
                    return Ok(Peek::End);
                }
                Some(Err(e)) => return Err(e),
                None => {}
            }
            match self.from.try_recv() {
                Ok(chunk) => self.take(chunk),
                Err(TryRecvError::Empty) => return Ok(Peek::Wait),
                Err(TryRecvError::Disconnected) => return Err(died()),
            }
        }
        let (read, end) = self.chunk.frames[self.next];
        let bytes = &self.chunk.bytes[self.at..end];
        let frame =
            ReplayFrame { index: self.index, due: read.due, header: read.header, len: bytes.len(), bytes };
        Ok(Peek::Frame(frame))
    }

    /// Goes on past the frame that `peek` showed.
    pub fn advance(&mut self) {
        if let Some((_, end)) = self.chunk.frames.get(self.next) {
            self.at = *end;
            self.next += 1;
            self.index += 1;
        }
    }

    /// Waits until there is more, `timeout` at the longest.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        if self.next < self.chunk.frames.len() || self.chunk.end.is_some() {
            return Ok(());
        }
        match self.from.recv_timeout(timeout) {
            Ok(chunk) => self.take(chunk),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(died()),
        }
        Ok(())
    }

    /// What is known of the capture up to the frames that are here.
    pub fn known(&self) -> &Known {
        &self.chunk.known
    }

    fn take(&mut self, chunk: Chunk) {
        self.chunk = chunk;
        (self.next, self.at) = (0, 0);
    }
}

fn died() -> anyhow::Error {
    anyhow!("the thread that reads the capture is gone; its message is above")
}

/// The reading thread: until the end, an error, or nobody listens.
fn read(mut source: CaptureReader, mut known: Known, to: &SyncSender<Chunk>) {
    let mut frame = Vec::new();
    loop {
        let mut chunk = Chunk { frames: Vec::new(), bytes: Vec::new(), known: Known::default(), end: None };
        while chunk.end.is_none() {
            match source.next(&mut frame) {
                Ok(Some(read)) => {
                    known.count(&read, frame.len());
                    chunk.bytes.extend_from_slice(&frame);
                    chunk.frames.push((read, chunk.bytes.len()));
                }
                Ok(None) => chunk.end = Some(Ok(())),
                Err(e) => chunk.end = Some(Err(e)),
            }
            let full = chunk.bytes.len() >= CHUNK_BYTES || chunk.frames.len() >= CHUNK_FRAMES;
            if full || source.may_wait() {
                break;
            }
        }
        known.note(&source);
        chunk.known = known.clone();
        let ended = chunk.end.is_some();
        if to.send(chunk).is_err() || ended {
            return;
        }
    }
}
