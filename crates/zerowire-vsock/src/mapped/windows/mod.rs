//! Publishes windows and takes them back. How they are filled: [`fill`] by copying, [`lend`] with
//! chains of the guest.
//!
//! ```text
//!  Filling --publish--> OutWindows --the program releases it--> free again
//!                 Bell: wakes the program, and asks it to tell of a release
//! ```

mod bell;
mod fill;
mod lend;
mod out;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use zerowire_wire::doorbell;
use zerowire_wire::mapped::{
    DAEMON_WAITS_AT, END_CUT_SHORT, ENTRIES_AT, ENTRY_LEN, MapOptions, POLL_DATA, POLL_END, POLL_NOTHING,
    PROGRAM_SLEEPS_AT, READS_NO_MORE_AT, VERSION, VERSION_AT,
};

use self::bell::Bell;
use self::fill::Filling;
use self::out::OutWindows;
use super::direct::Direct;
use super::memory::{Memory, ProgramFiles};
use super::quota::MapClaim;
use crate::credit::Releases;
use crate::packet::Kind;

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

/// The windows of one connection, seen from the side that fills them. Of all that the program can
/// write it believes `poll_value` alone, and that only as "mine" or "not mine".
#[derive(Debug)]
pub struct Windows {
    options: MapOptions,
    kind: Kind,
    memory: Memory,
    /// Held open for the program's side; epoll watches it.
    pub released: OwnedFd,
    filling: Filling,
    out: OutWindows,
    bell: Bell,
    /// How far the end has come.
    pub ended: Ended,
    /// True: something that the guest sent is missing before the end.
    cut_short: bool,
    /// What is lent, where payload may stay in guest memory.
    pub direct: Option<Direct>,
    /// What they take of the VM's quota, as long as they are there.
    pub claim: Option<MapClaim>,
}

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
            released,
            filling: Filling::default(),
            out: OutWindows::new(options.windows),
            bell: Bell::new(ready),
            ended: Ended::No,
            cut_short: false,
            direct: None,
            claim: None,
        };
        Ok((windows, files))
    }

    /// Whether packets must be given one by one, so that each begins on a page of its own.
    pub fn keeps_packets_apart(&self) -> bool {
        !self.options.packed || self.direct.is_some()
    }

    fn poll_at(&self, window: u32) -> usize {
        self.options.header_at(window)
    }

    /// Whether the window takes something: it is being filled, or it came back.
    fn begin(&mut self) -> bool {
        if self.filling.entries > 0 {
            return true;
        }
        if !self.is_ours(self.filling.window) {
            return false;
        }
        if let Some(direct) = &mut self.direct {
            direct.begin(self.filling.window);
        }
        true
    }

    fn is_ours(&self, window: u32) -> bool {
        is_back(&self.memory, &self.options, window)
    }

    fn entry(&self, i: usize, len: u32, flags: u32) {
        let at = self.poll_at(self.filling.window) + ENTRIES_AT + i * ENTRY_LEN;
        self.memory.word(at).store(len, Ordering::Relaxed);
        self.memory.word(at + 4).store(flags, Ordering::Relaxed);
    }

    /// Gives the window to the program, and goes on with the next one. A program that sleeps hears
    /// of it by [`Self::tell`].
    fn publish(&mut self) {
        self.entry(self.filling.entries, 0, 0);
        let at = self.poll_at(self.filling.window);
        self.memory.word(at + 4).store(self.filling.pages as u32, Ordering::Relaxed);
        self.memory.word(at).store(POLL_DATA, Ordering::Release);
        if let Some(direct) = &mut self.direct {
            direct.published(self.filling.window);
        }
        let is_due = self.bell.published(self.filling.bytes);
        self.out.push(self.filling.window, self.filling.copied as u32);
        self.filling.go_on(self.options.windows);
        if is_due {
            self.tell();
        }
    }

    /// Wakes the program if it sleeps and something was published since the last time.
    pub fn tell(&mut self) {
        self.bell.ring(self.memory.word(PROGRAM_SLEEPS_AT));
    }

    /// At the end of a turn: publishes what is due; [`Self::tell`] comes after it. A program that
    /// is behind gets fuller windows: the last free window waits until it is full, another one is
    /// released, or the program sleeps. A program that sleeps has taken all that was published, and
    /// may hold it until more comes. Returns true if a window was released meanwhile: settle again.
    pub fn settle(&mut self) -> bool {
        if self.ended == Ended::Due {
            self.tell_end();
            return false;
        }
        if self.filling.entries == 0 || self.ended == Ended::Told {
            return false;
        }
        let next = (self.filling.window + 1) % self.options.windows;
        let goes = self.is_enough() && (self.is_ours(next) || self.program_sleeps());
        if self.filling.is_full(&self.options) || goes {
            self.publish();
            return false;
        }
        self.is_enough() && self.wait_for(next)
    }

    /// Whether the program wants to hear of what the window has.
    fn is_enough(&self) -> bool {
        self.filling.entries > 0 && self.filling.bytes >= self.options.lowat as usize
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

    /// Asks the program to tell of the next release. Returns true if the window that is wanted is
    /// free by now.
    pub fn wait_for_room(&mut self) -> bool {
        self.wait_for(self.filling.window)
    }

    /// Asks the program to tell when the window comes back. It tells of that one alone, or of one
    /// before it that this side waits for already. Returns true if the window is back by now. The
    /// announcement stays then, for another wait may rest on it.
    ///
    /// Whatever waits here can go on only when everything before it is back as well. It announces
    /// itself anew when the program tells of a release ([`Self::told_of_release`]).
    fn wait_for(&mut self, window: u32) -> bool {
        let before = |w: &u32| *w != window && !self.is_ours(*w) && self.age(*w) < self.age(window);
        let awaited = self.bell.awaited.filter(before).unwrap_or(window);
        self.bell.awaited = Some(awaited);
        !doorbell::announce(self.memory.word(DAEMON_WAITS_AT), doorbell::only(awaited), || {
            self.is_ours(window)
        })
    }

    /// The program has told of a release: nothing is announced any more.
    pub fn told_of_release(&mut self) {
        self.bell.awaited = None;
    }

    /// How many windows were published before this one, of those that are out.
    fn age(&self, window: u32) -> u32 {
        (window + self.options.windows - self.filling.window) % self.options.windows
    }

    /// What the guest sent does not come whole; the program hears so with the end. Without effect
    /// once all of it is published.
    pub fn cut_short(&mut self) {
        self.cut_short |= self.ended == Ended::No;
    }

    /// Whether the program has said that it reads no more.
    pub fn are_read_no_more(&self) -> bool {
        self.memory.word(READS_NO_MORE_AT).load(Ordering::Acquire) != 0
    }

    /// No more data will come: the program hears so behind what was published.
    pub fn end(&mut self) {
        if self.ended == Ended::No {
            self.cut_short |= self.filling.in_message;
            self.ended = Ended::Due;
            if self.filling.entries > 0 {
                self.publish();
            }
            self.tell_end();
            self.tell();
        }
    }

    fn tell_end(&mut self) {
        if !self.is_ours(self.filling.window) && !self.wait_for(self.filling.window) {
            return;
        }
        let at = self.poll_at(self.filling.window);
        self.entry(0, 0, if self.cut_short { END_CUT_SHORT } else { 0 });
        self.memory.word(at + 4).store(0, Ordering::Relaxed);
        self.memory.word(at).store(POLL_END, Ordering::Release);
        self.ended = Ended::Told;
        self.bell.published(0);
    }
}

/// In the order in which windows were published.
impl Releases for Windows {
    fn take_released(&mut self) -> u32 {
        self.out.take(|window| is_back(&self.memory, &self.options, window))
    }

    fn is_any_out(&self) -> bool {
        !self.out.is_empty()
    }

    fn wait_for_bytes(&mut self, bytes: u32) -> bool {
        let last = self.out.last_of(bytes, |window| self.is_ours(window));
        last.is_none_or(|w| self.wait_for(w))
    }
}

/// Whether a window is not the program's: it never was, or was released.
fn is_back(memory: &Memory, options: &MapOptions, window: u32) -> bool {
    memory.word(options.header_at(window)).load(Ordering::Acquire) == POLL_NOTHING
}
