//! Where the frames come from while they are sent. They come from memory, from the file once more,
//! or from memory and then the rest of a stream. Each source goes through the capture once, a
//! *pass*. It can begin again if its source can.

use std::time::Duration;

use anyhow::{Result, bail};

use super::ahead::Ahead;
use super::capture::input::Input;
use super::load::{CaptureReader, Known, Rules};
use super::store::{ReplayFrame, Store};

/// What comes next.
pub enum Peek<'a> {
    /// A frame.
    Frame(ReplayFrame<'a>),
    /// It is not there yet.
    Wait,
    /// The pass is over.
    End,
}

/// Frames in the order of the capture.
pub trait Feed {
    /// What is next. An error ends the feed.
    fn peek(&mut self) -> Result<Peek<'_>>;
    /// Goes on past the frame that `peek` showed.
    fn advance(&mut self);
    /// How many frames are there from the next one on, up to `max`, so that [`Feed::skip`] may pass
    /// them. 0: `peek` tells.
    fn row(&self, _max: usize) -> usize {
        0
    }
    /// Goes on past `count` frames of a row: their bytes, and when the last one is due.
    fn skip(&mut self, _count: usize) -> (u64, u64) {
        (0, 0)
    }
    /// Waits until the next frame may be there, `timeout` at the longest.
    fn wait(&mut self, timeout: Duration) -> Result<()>;
    /// Begins the next pass.
    fn rewind(&mut self) -> Result<()>;
    /// The packet that frame `index` of a pass was, where that is known.
    fn packet(&self, index: usize) -> Option<u64>;
}

/// From memory.
pub struct MemoryFeed {
    store: Store,
    next: usize,
}

impl MemoryFeed {
    /// At the beginning.
    pub fn new(store: Store) -> Self {
        Self { store, next: 0 }
    }
}

impl Feed for MemoryFeed {
    #[inline]
    fn peek(&mut self) -> Result<Peek<'_>> {
        Ok(self.store.get(self.next).map_or(Peek::End, Peek::Frame))
    }

    fn advance(&mut self) {
        self.next += 1;
    }

    fn row(&self, max: usize) -> usize {
        max.min(self.store.len() - self.next)
    }

    fn skip(&mut self, count: usize) -> (u64, u64) {
        let row = self.store.row(self.next, count);
        self.next += count;
        row
    }

    fn wait(&mut self, _: Duration) -> Result<()> {
        Ok(())
    }

    fn rewind(&mut self) -> Result<()> {
        self.next = 0;
        Ok(())
    }

    fn packet(&self, index: usize) -> Option<u64> {
        self.store.packet(index)
    }
}

/// From a file that is read again in each pass.
pub struct FileFeed {
    input: Input,
    rules: Rules,
    ahead: Ahead,
}

impl FileFeed {
    /// At the beginning of the file.
    pub fn open(input: &Input, rules: &Rules) -> Result<Self> {
        Ok(Self { input: input.clone(), rules: rules.clone(), ahead: begin(input, rules)? })
    }
}

fn begin(input: &Input, rules: &Rules) -> Result<Ahead> {
    Ahead::start(CaptureReader::open(input, rules)?, Known::default(), 0)
}

impl Feed for FileFeed {
    fn peek(&mut self) -> Result<Peek<'_>> {
        self.ahead.peek()
    }

    fn advance(&mut self) {
        self.ahead.advance();
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.ahead.wait(timeout)
    }

    fn rewind(&mut self) -> Result<()> {
        self.ahead = begin(&self.input, &self.rules)?;
        Ok(())
    }

    fn packet(&self, _: usize) -> Option<u64> {
        None
    }
}

/// From memory, then from the rest of a stream.
pub struct Rest {
    /// None once all of it was sent.
    begin: Option<MemoryFeed>,
    ahead: Ahead,
}

impl Rest {
    /// `begin` has what was read of `source` so far, of which `known` is known.
    pub fn start(begin: Store, source: CaptureReader, known: Known) -> Result<Self> {
        let ahead = Ahead::start(source, known, begin.len())?;
        Ok(Self { begin: Some(MemoryFeed::new(begin)), ahead })
    }

    /// What is known of the capture so far.
    pub fn known(&self) -> Known {
        self.ahead.known().clone()
    }
}

impl Feed for Rest {
    fn peek(&mut self) -> Result<Peek<'_>> {
        match &mut self.begin {
            Some(begin) => begin.peek(),
            None => self.ahead.peek(),
        }
    }

    fn advance(&mut self) {
        match &mut self.begin {
            Some(begin) => {
                begin.advance();
                if begin.next == begin.store.len() {
                    self.begin = None;
                }
            }
            None => self.ahead.advance(),
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<()> {
        if self.begin.is_some() { Ok(()) } else { self.ahead.wait(timeout) }
    }

    fn rewind(&mut self) -> Result<()> {
        bail!(
            "the capture comes over a pipe and is longer than --max-memory, so that it can be sent only once"
        )
    }

    fn packet(&self, index: usize) -> Option<u64> {
        self.begin.as_ref()?.packet(index)
    }
}
