//! Reads a capture, where possible once from the beginning to the end before anything is sent.

use anyhow::{Context, Result, bail};
use zerowire::packet::VnetHeader;

use super::capture::input::{Input, Stream};
use super::capture::{CaptureError, Reader};
use super::policy::{Policy, Skipped};
use super::store::Store;
use super::timing::Timeline;

/// How a capture is read.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What is done with each packet.
    pub policy: Policy,
    /// When each is due, at the beginning.
    pub timeline: Timeline,
    /// A capture that ends inside a packet is taken up to there.
    pub ignore_truncated: bool,
}

/// A frame that was read; its bytes are in the caller's buffer.
#[derive(Clone, Copy, Debug)]
pub struct LoadedFrame {
    /// Its packet.
    pub number: u64,
    /// When it is due.
    pub due: u64,
    /// Offload.
    pub header: VnetHeader,
}

/// A capture on its way to frames.
pub struct CaptureReader {
    reader: Reader<Stream>,
    rules: Rules,
    name: String,
    /// Packets left out so far.
    skipped: Skipped,
    /// The message about the missing end, if the end is ignored.
    truncated: Option<String>,
}

impl CaptureReader {
    /// Opens `input` from the beginning.
    pub fn open(input: &Input, rules: &Rules) -> Result<Self> {
        let (reader, rules, name) = (input.open()?, rules.clone(), input.name());
        Ok(Self { reader, rules, name, skipped: Skipped::new(), truncated: None })
    }

    /// Puts the next frame into `frame`; None at the end.
    pub fn next(&mut self, frame: &mut Vec<u8>) -> Result<Option<LoadedFrame>> {
        if self.truncated.is_some() {
            return Ok(None);
        }
        loop {
            let packet = match self.reader.next() {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(None),
                Err(e @ CaptureError::Truncated { .. }) if self.rules.ignore_truncated => {
                    self.truncated = Some(e.to_string());
                    return Ok(None);
                }
                Err(e) => return Err(e).with_context(|| self.name.clone()),
            };
            // Before the rest: a packet that is left out takes its time all the same.
            let due = self.rules.timeline.due(&packet).with_context(|| self.name.clone())?;
            let number = packet.number;
            match self.rules.policy.apply(&packet, frame).with_context(|| self.name.clone())? {
                Ok(header) => return Ok(Some(LoadedFrame { number, due, header })),
                Err(skip) => *self.skipped.entry(skip.name()).or_default() += 1,
            }
        }
    }

    /// Whether the next frame may need a wait: it is not wholly read.
    pub fn may_wait(&self) -> bool {
        !self.reader.has_more()
    }
}

/// What is known of a capture after it was read.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Packets in it.
    pub packets: u64,
    /// Frames to send in each pass.
    pub frames: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// The longest one, bytes.
    pub longest: usize,
    /// Those that go with offload.
    pub offloaded: u64,
    /// When the last one is due in its pass, nanoseconds.
    pub span: u64,
    /// Packets left out in each pass.
    pub skipped: Skipped,
    /// What is missing at the end.
    pub truncated: Option<String>,
}

impl Known {
    /// Counts a frame.
    pub fn count(&mut self, read: &LoadedFrame, len: usize) {
        self.frames += 1;
        self.bytes += len as u64;
        self.longest = self.longest.max(len);
        self.span = self.span.max(read.due);
        self.offloaded += u64::from(read.header.is_segmented());
    }

    /// Notes what the source counts.
    pub fn note(&mut self, source: &CaptureReader) {
        self.packets = source.reader.packets;
        self.skipped.clone_from(&source.skipped);
        self.truncated.clone_from(&source.truncated);
    }
}

/// A capture that was read.
pub enum Loaded {
    /// All of it is in memory.
    Whole(Store, Known),
    /// It is larger than the memory for it; all of it was read and found good, and it can be read
    /// again.
    Checked(Known),
    /// It is larger than the memory for it and can't be read again: its beginning, and where the
    /// rest comes from.
    Flowing(Store, Box<CaptureReader>, Known),
}

/// Reads `input`, at most `limit` frames of it, and keeps up to `memory` bytes.
pub fn load(input: &Input, rules: &Rules, limit: Option<u64>, memory: usize) -> Result<Loaded> {
    let mut source = CaptureReader::open(input, rules)?;
    let again = input.can_be_read_again();
    let (mut store, mut known, mut fits) = (Store::default(), Known::default(), true);
    let mut frame = Vec::new();
    while limit.is_none_or(|n| known.frames < n) {
        let Some(read) = source.next(&mut frame)? else { break };
        known.count(&read, frame.len());
        if !fits {
            continue;
        }
        let over = store.used() + Store::cost(frame.len()) > memory;
        if over && again {
            store.clear();
            fits = false;
            continue;
        }
        store.add(read.number, read.due, read.header, &frame);
        if over {
            known.note(&source);
            return Ok(Loaded::Flowing(store, Box::new(source), known));
        }
    }
    known.note(&source);
    if known.frames == 0 {
        bail!("{}: nothing to send: {}", input.name(), nothing(&known));
    }
    Ok(if fits { Loaded::Whole(store, known) } else { Loaded::Checked(known) })
}

/// Why there is nothing.
fn nothing(known: &Known) -> String {
    match known.packets {
        0 => "the capture has no packets".to_owned(),
        n => {
            let why = known.skipped.iter().map(|(k, n)| format!("{n} {k}")).collect::<Vec<_>>().join(", ");
            format!("all of its {n} packets were left out ({why})")
        }
    }
}
