//! Copies payload into windows: where bytes go, and how packets become entries.

use zerowire_vhost::memory::Segment;
use zerowire_wire::mapped::{ENTRY_EOM, MapOptions, PAGE};

use super::Windows;
use crate::held::Held;
use crate::packet::Kind;

/// The window that is filled, or that comes next.
#[derive(Debug, Default)]
pub(super) struct Filling {
    /// Its number.
    pub(super) window: u32,
    /// Entries in it.
    pub(super) entries: usize,
    /// Pages of it in use.
    pub(super) pages: usize,
    /// Bytes of the last entry, if it may grow: it belongs to the same stream or message.
    pub(super) open: Option<usize>,
    /// Bytes in it.
    pub(super) bytes: usize,
    /// Of these, the ones that were copied.
    pub(super) copied: usize,
    /// True: a message has begun and not ended.
    pub(super) in_message: bool,
    /// True: the end of a message came alone, behind a window that was published.
    lost_end: bool,
}

impl Filling {
    /// Where the next byte goes, from the window's first data page on.
    fn next_byte(&self) -> usize {
        match self.open {
            Some(len) => self.pages * PAGE - (len.div_ceil(PAGE) * PAGE - len),
            None => self.pages * PAGE,
        }
    }

    /// Bytes that the window still takes.
    fn room(&self, options: &MapOptions) -> usize {
        options.window_data_len() - self.next_byte()
    }

    /// Whether the window takes no more.
    pub(super) fn is_full(&self, options: &MapOptions) -> bool {
        let no_entry = self.open.is_none() && self.entries == options.max_entries();
        self.entries > 0 && (self.room(options) == 0 || no_entry)
    }

    /// Counts `n` bytes that were put at [`Self::next_byte`]. Returns the entry that they belong
    /// to, and its length now.
    fn put(&mut self, n: usize) -> (usize, usize) {
        let len = match self.open {
            Some(len) => {
                self.entries -= 1;
                self.pages -= len.div_ceil(PAGE);
                len + n
            }
            None => n,
        };
        self.pages += len.div_ceil(PAGE);
        self.bytes += n;
        self.copied += n;
        self.entries += 1;
        (self.entries - 1, len)
    }

    /// The window was published: the next one of `windows` comes.
    pub(super) fn go_on(&mut self, windows: u32) {
        let window = (self.window + 1) % windows;
        *self = Self { window, in_message: self.in_message, lost_end: self.lost_end, ..Self::default() };
    }
}

/// Where bytes come from.
enum Source<'a> {
    Guest(&'a [Segment], usize),
    Held(&'a Held),
}

impl Windows {
    /// Copies `len` bytes of guest memory into windows: a packet, or several of a stream. Returns
    /// how many there was room for.
    pub fn push(&mut self, parts: &[Segment], skip: usize, len: usize, end: Option<u32>) -> usize {
        self.fill(&Source::Guest(parts, skip), len, end)
    }

    /// As [`Self::push`], the first `len` bytes of what waits.
    pub fn push_held(&mut self, held: &Held, len: usize, end: Option<u32>) -> usize {
        self.fill(&Source::Held(held), len, end)
    }

    fn fill(&mut self, source: &Source<'_>, len: usize, end: Option<u32>) -> usize {
        let mut done = 0;
        if len == 0 && end.is_some() && self.filling.open.is_none() && self.filling.in_message {
            self.filling.lost_end = true;
        }
        if let (0, Some(flags), Some(open)) = (len, end, self.filling.open) {
            // The end of a message comes alone. (One of no bytes at all can't be told: length 0
            // ends the entries.)
            self.entry(self.filling.entries - 1, open as u32, flags);
            self.filling.open = None;
            self.filling.in_message = false;
        }
        if !self.options.packed {
            self.filling.open = None;
        }
        while done < len {
            if self.filling.is_full(&self.options) {
                self.publish();
            }
            if !self.begin() {
                break;
            }
            let n = self.filling.room(&self.options).min(len - done);
            let at = self.options.data_at(self.filling.window) + self.filling.next_byte();
            match source {
                Source::Guest(parts, skip) => self.memory.fill(at, parts, skip + done, n),
                Source::Held(held) => {
                    let mut at = at;
                    for run in held.runs(done, n) {
                        self.memory.fill_from(at, run);
                        at += run.len();
                    }
                }
            }
            done += n;
            self.note(n, if done == len { end } else { None });
        }
        done
    }

    /// Counts `n` bytes that were put where the next byte goes.
    fn note(&mut self, n: usize, end: Option<u32>) {
        let (entry, len) = self.filling.put(n);
        self.entry(entry, len as u32, end.unwrap_or(0));
        self.filling.in_message = self.is_unfinished(end);
        let goes_on = self.filling.in_message || (self.kind == Kind::Stream && self.options.packed);
        self.filling.open = goes_on.then_some(len);
    }

    /// Whether a packet with this end leaves a message open.
    pub(super) fn is_unfinished(&self, end: Option<u32>) -> bool {
        self.kind == Kind::SeqPacket && end.is_none_or(|flags| flags & ENTRY_EOM == 0)
    }

    /// Whether the end of a message could not be told: two messages would be one.
    pub fn has_lost_end(&self) -> bool {
        self.filling.lost_end
    }
}
