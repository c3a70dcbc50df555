//! Publishing windows and taking them back. How they are filled: [`fill`] by copying, [`lend`] with chains of the guest.

mod fill;
mod lend;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::net::SendFlags;
use zerowire::recv::doorbell;
use zerowire::recv::layout::{
    DAEMON_WAITS_AT, END_CUT_SHORT, ENTRIES_AT, ENTRY_LEN, MapOptions, POLL_DATA, POLL_END, POLL_NOTHING,
    PROGRAM_SLEEPS_AT, READS_NO_MORE_AT, VERSION, VERSION_AT,
};

use super::direct::Direct;
use super::memory::{Memory, ProgramFiles};
use super::quota::MapClaim;
use crate::vsock::credit::Releases;
use crate::vsock::packet::Kind;

/// How far the end of the data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// More may come.
    No,
    /// No more will come; the program has not been told, since it holds all windows.
    Due,
    /// The program was told.
    Told,
}

/// The windows of one connection, seen from the side that fills them. Of all that the program can write it believes
/// `poll_value` alone, and that only as "mine" or "not mine".
#[derive(Debug)]
pub struct Windows {
    options: MapOptions,
    kind: Kind,
    memory: Memory,
    ready: OwnedFd,
    /// Held open for the program's side; epoll watches it.
    pub released: OwnedFd,
    /// The window that is filled, or that comes next.
    window: u32,
    /// Entries in it.
    entries: usize,
    /// Pages of it in use.
    pages: usize,
    /// Bytes of the last entry, if it may grow: it belongs to the same stream or message.
    open: Option<usize>,
    /// Bytes in it.
    bytes: usize,
    /// Of these, the ones that were copied.
    copied: usize,
    ended: Ended,
    /// True: something that the guest sent is missing before the end.
    cut_short: bool,
    direct: Option<Direct>,
    /// Bytes copied into each window that was published and has not been seen back.
    out: Vec<u32>,
    /// The one of these that was published first, and how many they are.
    oldest: u32,
    out_count: u32,
    /// Bytes of windows that came back and were filled again before anybody asked.
    freed: u32,
    /// A message has begun and not ended.
    in_message: bool,
    /// The end of a message came alone, behind a window that was published.
    lost_end: bool,
    /// Bytes in windows that were published since the program was told.
    untold: usize,
    /// Such windows, empty ones too.
    wake_due: bool,
    /// The window whose release the program is to tell.
    awaited: Option<u32>,
    /// What they take of the VM's quota.
    _claim: Option<MapClaim>,
}

/// Bytes that are published in one turn before the program is told, rather than at the turn's end. One call for several
/// windows spares both sides' CPU time; a program with a CPU of its own should not wait for a long turn.
const TELL_AFTER: usize = 256 << 10;

impl Windows {
    /// New windows; the files are for the program.
    pub fn new(options: MapOptions, kind: Kind) -> io::Result<(Self, ProgramFiles)> {
        let (memory, files, ready) = Memory::new(&options)?;
        memory.word(VERSION_AT).store(u32::from(VERSION), Ordering::Relaxed);
        let released = files.released.try_clone()?;
        let windows = Self {
            options,
            kind,
            memory,
            ready,
            released,
            window: 0,
            entries: 0,
            pages: 0,
            open: None,
            bytes: 0,
            copied: 0,
            ended: Ended::No,
            cut_short: false,
            direct: None,
            out: vec![0; options.windows as usize],
            oldest: 0,
            out_count: 0,
            freed: 0,
            in_message: false,
            lost_end: false,
            untold: 0,
            wake_due: false,
            awaited: None,
            _claim: None,
        };
        Ok((windows, files))
    }

    /// They take this of the VM's quota, as long as they are there.
    pub fn set_claim(&mut self, claim: MapClaim) {
        self._claim = Some(claim);
    }

    /// Whether packets must be given one by one, so that each begins on a page of its own.
    pub fn keeps_packets_apart(&self) -> bool {
        !self.options.packed || self.direct.is_some()
    }

    /// How far the end has come.
    pub fn ended(&self) -> Ended {
        self.ended
    }

    fn poll_at(&self, window: u32) -> usize {
        self.options.header_at(window)
    }

    /// Whether the window takes something: it is being filled, or it came back.
    fn begin(&mut self) -> bool {
        if self.entries > 0 {
            return true;
        }
        if !self.is_ours(self.window) {
            return false;
        }
        if let Some(direct) = &mut self.direct {
            direct.begin(self.window);
        }
        true
    }

    fn is_ours(&self, window: u32) -> bool {
        self.memory.word(self.poll_at(window)).load(Ordering::Acquire) == POLL_NOTHING
    }

    fn entry(&self, i: usize, len: u32, flags: u32) {
        let at = self.poll_at(self.window) + ENTRIES_AT + i * ENTRY_LEN;
        self.memory.word(at).store(len, Ordering::Relaxed);
        self.memory.word(at + 4).store(flags, Ordering::Relaxed);
    }

    /// Gives the window to the program, and goes on with the next one. A program that sleeps hears of it by [`Self::tell`].
    fn publish(&mut self) {
        self.entry(self.entries, 0, 0);
        let at = self.poll_at(self.window);
        self.memory.word(at + 4).store(self.pages as u32, Ordering::Relaxed);
        self.memory.word(at).store(POLL_DATA, Ordering::Release);
        if let Some(direct) = &mut self.direct {
            direct.published(self.window);
        }
        self.untold += self.bytes;
        self.wake_due = true;
        self.next();
        if self.untold >= TELL_AFTER {
            self.tell();
        }
    }

    fn pop_oldest(&mut self) -> u32 {
        let bytes = std::mem::take(&mut self.out[self.oldest as usize]);
        self.oldest = (self.oldest + 1) % self.options.windows;
        self.out_count -= 1;
        bytes
    }

    fn next(&mut self) {
        if self.out_count == self.options.windows {
            // It is this one that went out first, and it came back before it was filled again.
            self.freed += self.pop_oldest();
        }
        self.out[self.window as usize] = self.copied as u32;
        self.out_count += 1;
        self.window = (self.window + 1) % self.options.windows;
        (self.entries, self.pages, self.bytes, self.copied, self.open) = (0, 0, 0, 0, None);
    }

    /// Wakes the program if it sleeps and something was published since the last time.
    pub fn tell(&mut self) {
        self.untold = 0;
        if std::mem::take(&mut self.wake_due)
            && doorbell::wake_if_sleeping(self.memory.word(PROGRAM_SLEEPS_AT))
        {
            // Where it is full, the program has enough to wake it.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.ready, &[1], flags);
        }
    }

    /// At the end of a turn: publishes what is due; [`Self::tell`] comes after it. Whoever is
    /// behind gets fuller windows: the last one that is free is not published before it is full,
    /// another one was released, or the program sleeps: it has taken all that was published then,
    /// and may hold it until more comes. Returns true if one was released meanwhile: settle again.
    pub fn settle(&mut self) -> bool {
        if self.ended == Ended::Due {
            self.tell_end();
            return false;
        }
        if self.entries == 0 || self.ended == Ended::Told {
            return false;
        }
        let next = (self.window + 1) % self.options.windows;
        let goes = self.is_enough() && (self.is_ours(next) || self.program_sleeps());
        if self.is_full() || goes {
            self.publish();
            return false;
        }
        self.is_enough() && self.wait_for(next)
    }

    /// Whether the program wants to hear of what the window has.
    fn is_enough(&self) -> bool {
        self.entries > 0 && self.bytes >= self.options.lowat as usize
    }

    fn program_sleeps(&self) -> bool {
        self.memory.word(PROGRAM_SLEEPS_AT).load(Ordering::Relaxed) != 0
    }

    /// Whether something is left that the program would be given if it were not behind: it may fall
    /// asleep any time.
    pub fn keeps_back(&self) -> bool {
        self.ended == Ended::No && self.is_enough()
    }

    /// Nothing has happened for a while: what was kept back goes to the program.
    pub fn publish_rest(&mut self) {
        if self.keeps_back() {
            self.publish();
            self.tell();
        }
    }

    /// Asks to be told of the next release. Returns true if the window that is wanted is free by now.
    pub fn wait_for_room(&mut self) -> bool {
        self.wait_for(self.window)
    }

    /// Asks to be told when the window comes back: of that one alone, or of one before it that is waited for already. Returns
    /// true if it is back by now. The announcement stays then, for another wait may rest on it.
    ///
    /// Whatever waits here can go on only when everything before it is back as well, and announces itself anew when anything
    /// is told ([`Self::told_of_release`]).
    fn wait_for(&mut self, window: u32) -> bool {
        let before = |w: &u32| *w != window && !self.is_ours(*w) && self.age(*w) < self.age(window);
        let awaited = self.awaited.filter(before).unwrap_or(window);
        self.awaited = Some(awaited);
        !doorbell::announce(self.memory.word(DAEMON_WAITS_AT), doorbell::only(awaited), || {
            self.is_ours(window)
        })
    }

    /// The program has told of a release: nothing is announced any more.
    pub fn told_of_release(&mut self) {
        self.awaited = None;
    }

    /// How many windows were published before this one, of those that are out.
    fn age(&self, window: u32) -> u32 {
        (window + self.options.windows - self.window) % self.options.windows
    }

    /// What the guest sent does not come whole, which the program is told with the end. Without
    /// effect once all of it is published.
    pub fn cut_short(&mut self) {
        self.cut_short |= self.ended == Ended::No;
    }

    /// Whether the program has said that it reads no more.
    pub fn are_read_no_more(&self) -> bool {
        self.memory.word(READS_NO_MORE_AT).load(Ordering::Acquire) != 0
    }

    /// No more data will come: the program is told behind what is there.
    pub fn end(&mut self) {
        if self.ended == Ended::No {
            self.cut_short |= self.in_message;
            self.ended = Ended::Due;
            if self.entries > 0 {
                self.publish();
            }
            self.tell_end();
            self.tell();
        }
    }

    fn tell_end(&mut self) {
        if !self.is_ours(self.window) && !self.wait_for(self.window) {
            return;
        }
        let at = self.poll_at(self.window);
        self.entry(0, 0, if self.cut_short { END_CUT_SHORT } else { 0 });
        self.memory.word(at + 4).store(0, Ordering::Relaxed);
        self.memory.word(at).store(POLL_END, Ordering::Release);
        self.ended = Ended::Told;
        self.wake_due = true;
    }
}

/// In the order in which windows were published.
impl Releases for Windows {
    fn take_released(&mut self) -> u32 {
        let mut bytes = std::mem::take(&mut self.freed);
        while self.out_count > 0 && self.is_ours(self.oldest) {
            bytes += self.pop_oldest();
        }
        bytes
    }

    fn is_any_out(&self) -> bool {
        self.out_count > 0
    }

    fn wait_for_bytes(&mut self, bytes: u32) -> bool {
        let (mut sum, mut last) = (0, None);
        for i in 0..self.out_count {
            let w = (self.oldest + i) % self.options.windows;
            if !self.is_ours(w) {
                last = Some(w);
            }
            sum += self.out[w as usize];
            if sum >= bytes {
                break;
            }
        }
        last.is_none_or(|w| self.wait_for(w))
    }
}
