//! Copying payload into windows: where bytes go, and how packets become entries.

use zerowire::recv::layout::{ENTRY_EOM, PAGE};

use super::Windows;
use crate::memory::Segment;
use crate::vsock::held::Held;
use crate::vsock::packet::Kind;

/// Where bytes come from.
enum Source<'a> {
    Guest(&'a [Segment], usize),
    Held(&'a Held),
}

impl Windows {
    /// Copies `len` bytes of guest memory into windows: a packet, or several of a stream. Returns how many there was room
    /// for.
    pub fn push(&mut self, parts: &[Segment], skip: usize, len: usize, end: Option<u32>) -> usize {
        self.fill(&Source::Guest(parts, skip), len, end)
    }

    /// As [`Self::push`], the first `len` bytes of what waits.
    pub fn push_held(&mut self, held: &Held, len: usize, end: Option<u32>) -> usize {
        self.fill(&Source::Held(held), len, end)
    }

    fn fill(&mut self, source: &Source<'_>, len: usize, end: Option<u32>) -> usize {
        let mut done = 0;
        if len == 0 && end.is_some() && self.open.is_none() && self.in_message {
            self.lost_end = true;
        }
        if let (0, Some(flags), Some(open)) = (len, end, self.open) {
            // The end of a message comes alone. (One of no bytes at all can't be told: length 0 ends the entries.)
            self.entry(self.entries - 1, open as u32, flags);
            self.open = None;
            self.in_message = false;
        }
        if !self.options.packed {
            self.open = None;
        }
        while done < len {
            if self.is_full() {
                self.publish();
            }
            if !self.begin() {
                break;
            }
            let n = self.room().min(len - done);
            let at = self.options.data_at(self.window) + self.next_byte();
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

    /// Where the next byte goes, from the window's first data page on.
    fn next_byte(&self) -> usize {
        match self.open {
            Some(len) => self.pages * PAGE - (len.div_ceil(PAGE) * PAGE - len),
            None => self.pages * PAGE,
        }
    }

    /// Bytes that the window still takes.
    fn room(&self) -> usize {
        self.options.window_data_len() - self.next_byte()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries > 0
            && (self.room() == 0 || (self.open.is_none() && self.entries == self.options.max_entries()))
    }

    /// Counts `n` bytes that were put at [`Self::next_byte`].
    fn note(&mut self, n: usize, end: Option<u32>) {
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
        self.entry(self.entries, len as u32, end.unwrap_or(0));
        self.entries += 1;
        self.in_message = self.is_unfinished(end);
        let goes_on = self.in_message || (self.kind == Kind::Stream && self.options.packed);
        self.open = goes_on.then_some(len);
    }

    /// Whether a packet with this end leaves a message open.
    pub(super) fn is_unfinished(&self, end: Option<u32>) -> bool {
        self.kind == Kind::SeqPacket && end.is_none_or(|flags| flags & ENTRY_EOM == 0)
    }

    /// Whether the end of a message could not be told: two messages would be one.
    pub fn has_lost_end(&self) -> bool {
        self.lost_end
    }
}
