//! Filling, publishing and taking back windows.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::net::SendFlags;
use zerowire::recv::doorbell;
use zerowire::recv::layout::{
    DAEMON_WAITS_AT, ENTRIES_AT, ENTRY_DIRECT, ENTRY_EOM, ENTRY_LEN, MapOptions, PAGE, POLL_DATA, POLL_END,
    POLL_NOTHING, PROGRAM_SLEEPS_AT, REGION_SHIFT, VERSION, VERSION_AT,
};

use super::direct::Direct;
use super::memory::{Memory, ProgramFiles};
use crate::memory::{GuestMemory, Segment};
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
    ended: Ended,
    direct: Option<Direct>,
    /// Bytes in each window that was published and has not been seen back.
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
}

/// Where bytes come from.
enum Source<'a> {
    Guest(&'a [Segment], usize),
    Private(&'a [u8]),
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
            ready,
            released,
            window: 0,
            entries: 0,
            pages: 0,
            open: None,
            bytes: 0,
            ended: Ended::No,
            direct: None,
            out: vec![0; options.windows as usize],
            oldest: 0,
            out_count: 0,
            freed: 0,
            in_message: false,
            lost_end: false,
        };
        Ok((windows, files))
    }

    /// Payload may stay in guest memory from now on.
    pub fn set_direct(&mut self, direct: Direct) {
        self.direct = Some(direct);
    }

    /// What is lent, where payload may stay in guest memory.
    pub fn direct(&mut self) -> Option<&mut Direct> {
        self.direct.as_mut()
    }

    /// Whether chains are lent.
    pub fn lends(&self) -> bool {
        self.direct.as_ref().is_some_and(|d| d.lent() > 0)
    }

    /// Whether payload may stay in guest memory.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Lends a packet to the program as it lies in guest memory. False where that is not possible now: it is to be copied.
    pub fn lend(&mut self, memory: &GuestMemory, parts: &[Segment], head: u16, end: Option<u32>) -> bool {
        let Some(direct) = &self.direct else { return false };
        if parts.is_empty() || direct.is_held() || parts.iter().any(|s| direct.place(memory, s).is_none()) {
            return false;
        }
        let entries = 2 * parts.len();
        if entries > self.options.max_entries() {
            return false;
        }
        if self.entries + entries > self.options.max_entries() {
            self.publish();
        }
        if !self.begin() {
            return false;
        }
        for (i, s) in parts.iter().enumerate() {
            let Some((region, at)) = self.direct.as_ref().and_then(|d| d.place(memory, s)) else { break };
            let end = if i + 1 == parts.len() { end.unwrap_or(0) } else { 0 };
            self.entry(self.entries, s.len, end | ENTRY_DIRECT | region << REGION_SHIFT);
            self.entry(self.entries + 1, at as u32, (at >> 32) as u32);
            self.entries += 2;
            self.bytes += s.len as usize;
        }
        self.open = None;
        self.in_message = self.is_unfinished(end);
        if let Some(direct) = &mut self.direct {
            direct.lend(self.window, head);
        }
        true
    }

    /// Chains of windows that were released since.
    pub fn take_back(&mut self, heads: &mut Vec<u16>) {
        let Some(mut direct) = self.direct.take() else { return };
        direct.take_begun(heads);
        let back: Vec<u32> = direct.out().filter(|w| self.is_ours(*w)).collect();
        for w in back {
            direct.take_back(w, heads);
        }
        self.direct = Some(direct);
    }

    /// Asks to be told of the next release, while chains are lent. Returns true if a window is back by now.
    pub fn wait_for_chains(&self) -> bool {
        let Some(direct) = self.direct.as_ref().filter(|d| d.lent() > 0) else { return false };
        // The announcement stays, whatever is found: a window that is waited for elsewhere may rest on the same word.
        let _ = doorbell::sleep_check(self.memory.word(DAEMON_WAITS_AT), || false);
        direct.has_back() || direct.out().any(|w| self.is_ours(w))
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

    /// Copies `len` bytes of guest memory into windows: a packet, or several of a stream. Returns how many there was room
    /// for.
    pub fn push(&mut self, parts: &[Segment], skip: usize, len: usize, end: Option<u32>) -> usize {
        self.fill(&Source::Guest(parts, skip), len, end)
    }

    /// As [`Self::push`], from private memory.
    pub fn push_bytes(&mut self, bytes: &[u8], end: Option<u32>) -> usize {
        self.fill(&Source::Private(bytes), bytes.len(), end)
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
                Source::Private(bytes) => self.memory.fill_from(at, &bytes[done..done + n]),
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

    fn is_full(&self) -> bool {
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
        self.entry(self.entries, len as u32, end.unwrap_or(0));
        self.entries += 1;
        self.in_message = self.is_unfinished(end);
        let goes_on = self.in_message || (self.kind == Kind::Stream && self.options.packed);
        self.open = goes_on.then_some(len);
    }

    /// Whether a packet with this end leaves a message open.
    fn is_unfinished(&self, end: Option<u32>) -> bool {
        self.kind == Kind::SeqPacket && end.is_none_or(|flags| flags & ENTRY_EOM == 0)
    }

    /// Whether the end of a message could not be told: two messages would be one.
    pub fn has_lost_end(&self) -> bool {
        self.lost_end
    }

    fn entry(&self, i: usize, len: u32, flags: u32) {
        let at = self.poll_at(self.window) + ENTRIES_AT + i * ENTRY_LEN;
        self.memory.word(at).store(len, Ordering::Relaxed);
        self.memory.word(at + 4).store(flags, Ordering::Relaxed);
    }

    /// Gives the window to the program, and goes on with the next one.
    fn publish(&mut self) {
        self.entry(self.entries, 0, 0);
        let at = self.poll_at(self.window);
        self.memory.word(at + 4).store(self.pages as u32, Ordering::Relaxed);
        self.memory.word(at).store(POLL_DATA, Ordering::Release);
        if let Some(direct) = &mut self.direct {
            direct.published(self.window);
        }
        self.next();
        self.wake();
    }

    /// Bytes of windows that came back since the last call, in the order in which they were published.
    pub fn take_released(&mut self) -> u32 {
        let mut bytes = std::mem::take(&mut self.freed);
        while self.out_count > 0 && self.is_ours(self.oldest) {
            bytes += self.pop_oldest();
        }
        bytes
    }

    fn pop_oldest(&mut self) -> u32 {
        let bytes = std::mem::take(&mut self.out[self.oldest as usize]);
        self.oldest = (self.oldest + 1) % self.options.windows;
        self.out_count -= 1;
        bytes
    }

    /// Whether a window is published and not back.
    pub fn is_any_out(&self) -> bool {
        self.out_count > 0
    }

    /// Asks to be told when the oldest window comes back. Returns true if it is back by now, or none is out.
    pub fn wait_for_oldest(&self) -> bool {
        self.out_count == 0 || self.wait_for(self.oldest)
    }

    fn next(&mut self) {
        if self.out_count == self.options.windows {
            // It is this one that went out first, and it came back before it was filled again.
            self.freed += self.pop_oldest();
        }
        self.out[self.window as usize] = self.bytes as u32;
        self.out_count += 1;
        self.window = (self.window + 1) % self.options.windows;
        (self.entries, self.pages, self.bytes, self.open) = (0, 0, 0, None);
    }

    /// Wakes the program if it sleeps.
    fn wake(&self) {
        if doorbell::wake_if_sleeping(self.memory.word(PROGRAM_SLEEPS_AT)) {
            // Where it is full, the program has enough to wake it.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(&self.ready, &[1], flags);
        }
    }

    /// At the end of a turn: publishes what is due. Whoever is behind gets fuller windows: the last one that is free is not
    /// published before it is full, or another one was released. Returns true if that would already be so: settle again.
    pub fn settle(&mut self) -> bool {
        if self.ended == Ended::Due {
            self.tell_end();
            return false;
        }
        if self.entries == 0 || self.ended == Ended::Told {
            return false;
        }
        let next = (self.window + 1) % self.options.windows;
        if self.is_full() || (self.bytes >= self.options.lowat as usize && self.is_ours(next)) {
            self.publish();
            return false;
        }
        self.bytes >= self.options.lowat as usize && self.wait_for(next)
    }

    /// Asks to be told of the next release. Returns true if the window that is wanted is free by now.
    pub fn wait_for_room(&mut self) -> bool {
        self.wait_for(self.window)
    }

    fn wait_for(&self, window: u32) -> bool {
        !doorbell::sleep_check(self.memory.word(DAEMON_WAITS_AT), || self.is_ours(window))
    }

    /// No more data will come: the program is told behind what is there.
    pub fn end(&mut self) {
        if self.ended == Ended::No {
            self.ended = Ended::Due;
            if self.entries > 0 {
                self.publish();
            }
            self.tell_end();
        }
    }

    fn tell_end(&mut self) {
        if !self.is_ours(self.window) && !self.wait_for(self.window) {
            return;
        }
        let at = self.poll_at(self.window);
        self.entry(0, 0, 0);
        self.memory.word(at + 4).store(0, Ordering::Relaxed);
        self.memory.word(at).store(POLL_END, Ordering::Release);
        self.ended = Ended::Told;
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(options: MapOptions, kind: Kind) -> Windows {
        Windows::new(options, kind).expect("memory").0
    }

    fn word(w: &Windows, window: u32, i: usize) -> u32 {
        w.memory.word(w.options.header_at(window) + 4 * i).load(Ordering::Relaxed)
    }

    fn release(w: &Windows, window: u32) {
        w.memory.word(w.options.header_at(window)).store(0, Ordering::Release);
    }

    /// The example of the layout's description.
    #[test]
    fn packets_of_56_4096_and_8200_bytes() {
        let mut w = windows(MapOptions { packed: false, ..Default::default() }, Kind::Stream);
        for (n, len) in [(1u8, 56), (2, 4096), (3, 8200)] {
            assert_eq!(w.push_bytes(&vec![n; len], None), len);
        }
        assert_eq!(word(&w, 0, 0), POLL_NOTHING);
        assert!(!w.settle());
        let head: Vec<u32> = (0..10).map(|i| word(&w, 0, i)).collect();
        assert_eq!(head, [POLL_DATA, 5, 56, 0, 4096, 0, 8200, 0, 0, 0].map(|n| n));
        let data = w.memory.data_for_tests();
        let page = |i: usize, at: usize| data[i * PAGE + at];
        assert_eq!((page(0, 55), page(0, 56), page(1, 4095)), (1, 0, 2));
        assert_eq!((page(2, 0), page(4, 7), page(4, 8)), (3, 3, 0));
    }

    #[test]
    fn small_packets_of_a_stream_share_pages() {
        let mut w = windows(MapOptions::default(), Kind::Stream);
        for _ in 0..5000 {
            assert_eq!(w.push_bytes(&[1], None), 1);
        }
        w.settle();
        assert_eq!([word(&w, 0, 1), word(&w, 0, 2), word(&w, 0, 4)], [2, 5000, 0]);
    }

    #[test]
    fn messages_keep_their_bounds_in_parts() {
        let mut w = windows(MapOptions { data_pages: 2, ..Default::default() }, Kind::SeqPacket);
        w.push_bytes(&[1; 10], None);
        w.push_bytes(&[2; 20], Some(1));
        // A message that is longer than what is left of the window.
        assert_eq!(w.push_bytes(&[3; 5000], Some(3)), 5000);
        w.settle();
        assert_eq!((2..8).map(|i| word(&w, 0, i)).collect::<Vec<_>>(), [30, 1, 4096, 0, 0, 0]);
        assert_eq!((2..6).map(|i| word(&w, 1, i)).collect::<Vec<_>>(), [904, 3, 0, 0]);
    }

    #[test]
    fn an_end_that_comes_alone_is_told_once() {
        let mut w = windows(MapOptions::default(), Kind::SeqPacket);
        w.push_bytes(&[1; 10], None);
        w.push_bytes(&[], Some(1));
        w.settle();
        assert_eq!((word(&w, 0, 2), word(&w, 0, 3)), (10, 1));
        w.push_bytes(&[], Some(1));
        assert!(!w.has_lost_end(), "an empty message is no end of the one before");
        w.push_bytes(&[2; 10], None);
        w.settle();
        w.push_bytes(&[], Some(1));
        assert!(w.has_lost_end(), "its part is the program's already");
    }

    #[test]
    fn who_is_behind_gets_fuller_windows() {
        let mut w = windows(MapOptions { windows: 2, data_pages: 1, ..Default::default() }, Kind::Stream);
        w.push_bytes(&[1; 100], None);
        assert!(!w.settle());
        w.push_bytes(&[2; 100], None);
        assert!(!w.settle(), "the program still has the other one");
        assert_eq!(word(&w, 1, 0), POLL_NOTHING);
        assert_eq!(w.push_bytes(&[3; 5000], None), 3996, "no window is left");
        assert_eq!((word(&w, 1, 0), word(&w, 1, 2)), (POLL_DATA, 4096), "full");
        assert!(!w.wait_for_room());
        release(&w, 0);
        assert!(w.wait_for_room());
        w.push_bytes(&[4; 10], None);
        assert!(!w.settle(), "the program still has the full one");
        assert_eq!(word(&w, 0, 0), POLL_NOTHING);
        release(&w, 1);
        w.settle();
        assert_eq!((word(&w, 0, 0), word(&w, 0, 2)), (POLL_DATA, 10));
    }

    #[test]
    fn the_end_comes_behind_the_last_byte_and_waits_for_a_window() {
        let mut w = windows(MapOptions { windows: 2, lowat: 4096, ..Default::default() }, Kind::Stream);
        w.push_bytes(&[1; 10], None);
        w.settle();
        assert_eq!(word(&w, 0, 0), POLL_NOTHING, "below the low-water mark");
        w.end();
        assert_eq!((word(&w, 0, 0), word(&w, 1, 0), w.ended()), (POLL_DATA, POLL_END, Ended::Told));

        let mut w = windows(MapOptions { windows: 2, ..Default::default() }, Kind::Stream);
        for _ in 0..2 {
            w.push_bytes(&[1; 512 << 10], None);
        }
        w.end();
        assert_eq!(w.ended(), Ended::Due);
        release(&w, 0);
        w.settle();
        assert_eq!((word(&w, 0, 0), w.ended()), (POLL_END, Ended::Told));
    }

    /// Guest memory of one region, windows that may be direct over it, and its first `n` pages as packets.
    fn direct_windows(options: MapOptions, n: usize) -> (GuestMemory, Windows, Vec<Segment>) {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, 1 << 20).expect("its size");
        let (guest_addr, len) = (0, 1 << 20);
        let region = crate::memory::RegionConfig { guest_addr, len, user_addr: 0, offset: 0, file };
        let memory = GuestMemory::new(vec![region]).expect("memory");
        let mut w = windows(MapOptions { direct: true, ..options }, Kind::Stream);
        w.set_direct(Direct::new(&memory.read_only().expect("files"), options.windows));
        let mut list = Vec::with_capacity(n);
        for i in 0..n {
            assert!(memory.translate(i as u64 * PAGE as u64, 100, &mut 0, &mut list));
        }
        (memory, w, list)
    }

    /// A window may come back and be filled again before anybody looked for its chains.
    #[test]
    fn chains_of_a_window_that_is_filled_again_are_not_taken_for_those_before() {
        let (memory, mut w, parts) =
            direct_windows(MapOptions { windows: 2, lowat: 4096, ..Default::default() }, 4);
        let mut heads = Vec::new();
        for window in 0..2 {
            assert!(w.lend(&memory, &parts[window..=window], window as u16, None));
            w.publish();
        }
        release(&w, 0);
        assert!(w.lend(&memory, &parts[2..3], 2, None), "the first window again");
        assert!(w.wait_for_chains(), "one is back");
        w.take_back(&mut heads);
        assert_eq!(heads, [0], "the program has not even seen the new one");
        assert!(w.lends());
        w.publish();
        w.take_back(&mut heads);
        assert_eq!(heads, [0]);
        release(&w, 0);
        release(&w, 1);
        w.take_back(&mut heads);
        heads.sort_unstable();
        assert_eq!(heads, [0, 1, 2]);
        assert!(!w.lends());
    }

    /// Out of order: chains that are back must not end the wait for another window.
    #[test]
    fn a_window_that_is_waited_for_stays_so_when_chains_come_back() {
        let (memory, mut w, parts) = direct_windows(MapOptions { windows: 3, ..Default::default() }, 1);
        w.push_bytes(&[1; 100], None);
        w.publish();
        assert!(w.lend(&memory, &parts, 0, None));
        w.publish();
        w.push_bytes(&[2; 100], None);
        assert!(!w.settle(), "the program has the window behind this one");
        let announced = |w: &Windows| w.memory.word(DAEMON_WAITS_AT).load(Ordering::Relaxed) == 1;
        assert!(announced(&w));
        release(&w, 1);
        assert!(w.wait_for_chains());
        assert!(announced(&w), "the release of window 0 must be told");
    }

    #[test]
    fn entries_may_fill_several_header_pages() {
        let options = MapOptions { header_pages: 2, data_pages: 2048, packed: false, ..Default::default() };
        let mut w = windows(options, Kind::Stream);
        for _ in 0..1022 {
            assert_eq!(w.push_bytes(&[1], None), 1);
        }
        assert_eq!(word(&w, 0, 0), POLL_NOTHING);
        w.push_bytes(&[1], None);
        assert_eq!((word(&w, 0, 0), word(&w, 0, 1)), (POLL_DATA, 1022));
    }
}
