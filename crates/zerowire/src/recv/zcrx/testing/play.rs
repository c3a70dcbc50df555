//! For fuzzing: the state machine under completions that bytes describe, with checks after each.

use super::super::areas::{AreaCut, Areas};
use super::super::state::{BELL, CANCEL_ALL, EVENT, ZcrxState, cancel_data, recv_data};
use crate::area::{Area, AreaOptions, Pages};
use crate::recv::core::{RecvConnection, RecvState, SocketShape};
use crate::recv::receiver::new_core;
use crate::recv::{Arrival, ConnectionId, RecvBackend, RecvOptions, What};
use std::collections::VecDeque;
use std::sync::Arc;
use zerowire_sys::uring::wide::{CQE_F_MORE, WideCqe};
use zerowire_sys::uring::zcrx::AREA_SHIFT;

/// Of the first area, and of the one that may be added.
const PAGES: usize = 6;
const ADDED: usize = 3;
const BYTES: usize = 4096;
const AREA_BYTES: usize = PAGES * BYTES;
const PLACES: u32 = 3;
/// The areas' numbers, above the offsets' bits.
const TOKEN: u64 = 5 << AREA_SHIFT;
const TOKEN_ADDED: u64 = 1 << AREA_SHIFT;
const ERRORS: [i32; 8] =
    [0, libc::ENOMEM, libc::ENOSPC, libc::ECANCELED, libc::EINTR, libc::ECONNRESET, libc::EIO, libc::EINVAL];

/// The side of the kernel, and of the program that holds leases.
struct Play {
    core: RecvState,
    state: ZcrxState,
    areas: Arc<Areas>,
    /// The memory, as the kernel has it.
    memory: Vec<Area>,
    /// Pages that the kernel may fill.
    free: Vec<u64>,
    /// What is left of the bound of each request in the kernel; `u64::MAX`: it has none.
    armed: [Option<u64>; PLACES as usize],
    /// Completions that nobody has taken, since slots had run out.
    queue: VecDeque<WideCqe>,
    /// Pages that completions name of which nothing was lent yet.
    unseen: usize,
    held: Vec<Arrival>,
    /// Only what a kernel does has happened.
    is_sound: bool,
}

/// Plays `script`: eight bytes an instruction. The first byte of all gives the mode. Its lowest
/// bit: completions may be such that no kernel sends. The next bit: there is a device. The next
/// bit: a second area is added in the middle. The next bit: another receiver adds it, without
/// notice.
///
/// # Panics
/// When a piece is lent twice or lost, or a lease lies outside the area.
pub(in crate::recv) fn play(script: &[u8]) {
    let options = RecvOptions {
        backend: RecvBackend::NoDevice,
        buffer_bytes: BYTES,
        buffers: PAGES,
        share: Some(3),
        ..RecvOptions::default()
    };
    let Ok(core) = new_core(&options) else { return };
    let Some((mode, script)) = script.split_first() else { return };
    let cut = AreaCut { area_bytes: AREA_BYTES, buffer_bytes: BYTES as u32, token: TOKEN };
    let Some(first) = core.pool.area(0).cloned() else { return };
    let areas = Arc::new(Areas::new(first.clone(), cut));
    let owed = (mode & 2 != 0).then(Arc::default);
    let state = ZcrxState::new(core.holdings.slots(), &core.pool, Arc::clone(&areas), owed);
    let mut play = Play {
        core,
        state,
        areas,
        memory: vec![first],
        free: (0..PAGES as u64).map(|p| TOKEN | (p * BYTES as u64)).collect(),
        armed: [None; PLACES as usize],
        queue: VecDeque::new(),
        unseen: 0,
        held: Vec::new(),
        is_sound: true,
    };
    for place in 0..PLACES {
        play.connect(place);
    }
    let steps = script.len() / 8;
    for (at, step) in script.chunks_exact(8).enumerate() {
        if at == steps / 2 && mode & 4 != 0 {
            play.append(mode & 8 != 0);
        }
        let place = u32::from(step[1]) % PLACES;
        let number = u32::from_le_bytes([step[2], step[3], step[4], step[5]]);
        match (step[0] % 8, mode & 1) {
            (0..=2, _) => play.receive(place, number),
            (3, _) => play.end(place, ERRORS[number as usize % ERRORS.len()]),
            (4, _) => play.give_back(step[1].into(), step[2] & 1 == 1),
            (5, _) => play.submit(),
            (6, _) => play.change(place, step[2]),
            (_, 0) => play.submit(),
            _ => play.nonsense(step),
        }
        play.check();
    }
    while !play.queue.is_empty() || play.state.is_blocked() {
        play.give_back(usize::MAX, true);
        play.take();
    }
    play.give_back(usize::MAX, true);
    assert_eq!(play.core.holdings.lent(), 0, "all leases are back");
    play.check();
}

impl Play {
    fn connect(&mut self, place: u32) {
        let id = ConnectionId { place, generation: 1 };
        let connection = RecvConnection::new(id, SocketShape::Stream);
        match self.core.connections.get_mut(place as usize) {
            Some(old) => *old = connection,
            None => self.core.connections.push(connection),
        }
        self.core.holdings.grow(self.core.connections.len());
        self.state.requests.add(place);
    }

    fn append(&mut self, elsewhere: bool) {
        let cut = AreaOptions { buffer_bytes: BYTES, buffers: ADDED, pages: Pages::Normal };
        let Ok(area) = Area::new(cut) else { return };
        let added = self.areas.add(area.clone(), ADDED * BYTES, || Ok(TOKEN_ADDED));
        assert!(matches!(added, Some(Ok(_))), "{added:?}");
        self.memory.push(area);
        if !elsewhere {
            self.state.learn(&self.core.pool);
            self.state.make_room(&mut self.core, ADDED, 3);
        }
        self.free.extend((0..ADDED as u64).map(|p| TOKEN_ADDED | (p * BYTES as u64)));
    }

    /// As the back end submits, and what the kernel answers to cancellations.
    fn submit(&mut self) {
        while let Some(place) = self.state.to_cancel.pop_front() {
            let found = self.armed[place as usize].take().is_some();
            if found {
                self.complete(recv_data(place), -libc::ECANCELED, 0, 0);
            }
            self.complete(cancel_data(place), if found { 0 } else { -libc::ENOENT }, 0, 0);
        }
        while let Some((place, bound)) = self.state.next_arm(&self.core) {
            let bound = if bound == 0 { u64::MAX } else { bound.into() };
            let before = self.armed[place as usize].replace(bound);
            assert!(before.is_none() || !self.is_sound, "armed twice");
        }
    }

    fn complete(&mut self, user_data: u64, result: i32, flags: u32, extra: u64) {
        self.unseen += usize::from(result > 0);
        self.queue.push_back(WideCqe { user_data, result, flags, extra });
        self.take();
    }

    fn take(&mut self) {
        let Self { state, core, held, queue, .. } = self;
        let before = held.len();
        let all = state.take_all(core, || queue.pop_front());
        core.take_arrivals(held);
        assert!(all || core.holdings.free() == 0, "there was a slot for it");
        let data = held[before..].iter().filter(|a| matches!(&a.what, What::Data(_))).count();
        self.unseen = self.unseen.saturating_sub(data);
    }

    /// A request fills a page, or a part of one; without any it ends.
    fn receive(&mut self, place: u32, number: u32) {
        let Some(bound) = self.armed[place as usize] else { return };
        let Some(page) = self.free.pop() else { return self.end(place, libc::ENOMEM) };
        let len = (u64::from(number) % BYTES as u64 + 1).min(bound);
        let at = u64::from(number >> 16) % (BYTES as u64 - len + 1);
        self.complete(recv_data(place), len as i32, CQE_F_MORE, page + at);
        let left = if bound == u64::MAX { bound } else { bound - len };
        if left == 0 {
            self.end(place, 0);
        } else {
            self.armed[place as usize] = Some(left);
        }
    }

    fn end(&mut self, place: u32, errno: i32) {
        if self.armed[place as usize].take().is_some() {
            self.complete(recv_data(place), -errno, 0, 0);
        }
    }

    /// The program drops leases; the kernel takes the entries of the refill ring.
    fn give_back(&mut self, count: usize, flush: bool) {
        let keep = self.held.len().saturating_sub(count);
        drop(self.held.split_off(keep));
        let Self { state, core, .. } = self;
        core.collect(|slot| state.returned(slot));
        while let Some(place) = core.eased.pop() {
            if core.may_receive(place) {
                state.requests.queue(place);
            }
        }
        if flush {
            for entry in self.state.waiting.drain(..) {
                let (token, offset) = (entry.off & AreaCut::TOKEN, entry.off & !AreaCut::TOKEN);
                let bytes = match token {
                    TOKEN => AREA_BYTES,
                    TOKEN_ADDED if self.memory.len() > 1 => ADDED * BYTES,
                    _ => panic!("another area"),
                };
                assert!(entry.len > 0 && offset + u64::from(entry.len) <= bytes as u64, "no piece of it");
                self.free.push(token | (offset / BYTES as u64 * BYTES as u64));
            }
            self.state.feed();
        }
    }

    /// The program stops a connection, goes on with it, or removes it, so that its place is used
    /// again.
    fn change(&mut self, place: u32, how: u8) {
        match how % 3 {
            0 => drop(self.state.unwant(place)),
            1 if self.core.may_receive(place) => self.state.requests.queue(place),
            1 => {}
            _ => {
                if self.core.holdings.held(place) == 0 && !self.state.is_armed(place) {
                    self.state.unwant(place);
                    self.connect(place);
                }
            }
        }
    }

    fn nonsense(&mut self, step: &[u8]) {
        self.is_sound = false;
        let number = u32::from_le_bytes([step[2], step[3], step[4], step[5]]);
        let user_data = match step[1] % 16 {
            0 => BELL,
            1 => EVENT,
            2 => CANCEL_ALL,
            3 => cancel_data(number % 5),
            4 => u64::from(number) << 32 | u64::from(step[6]),
            n => recv_data(u32::from(n) % 5),
        };
        let result = match step[6] % 4 {
            0 => -ERRORS[usize::from(step[2]) % ERRORS.len()],
            1 => number as i32,
            _ => (number % 5000) as i32,
        };
        let extra = match step[7] % 8 {
            0 => u64::from(number) << 20,
            1 => u64::MAX - u64::from(step[3]),
            2 => TOKEN_ADDED | (u64::from(number >> 8) % ((ADDED * BYTES) as u64 + 5000)),
            n => TOKEN | (u64::from(number >> 8) % (AREA_BYTES as u64 + 5000)) | u64::from(n == 3) << 63,
        };
        self.state.copied(number.into());
        self.complete(user_data, result, u32::from(step[7] >> 3), extra);
    }

    fn check(&self) {
        let mut pages = 0u64;
        let mut data = 0;
        for arrival in &self.held {
            let What::Data(lease) = &arrival.what else { continue };
            data += 1;
            let place = self.memory.iter().enumerate().find_map(|(i, area)| {
                let offset = (lease.as_ptr() as usize).wrapping_sub(area.base() as usize);
                let bytes = [AREA_BYTES, ADDED * BYTES][i];
                offset
                    .checked_add(lease.len())
                    .filter(|end| *end <= bytes)
                    .map(|_| i * PAGES + offset / BYTES)
            });
            assert!(!lease.is_empty() && place.is_some(), "a lease outside of the areas");
            let page = 1 << place.unwrap_or(0);
            assert!(pages & page == 0 || !self.is_sound, "a page is lent twice");
            pages |= page;
        }
        let holdings = &self.core.holdings;
        assert_eq!(holdings.free() + holdings.lent() as usize, holdings.slots(), "a slot is lost");
        assert!(holdings.lent() as usize >= data);
        let armed = (0..PLACES).filter(|p| self.state.is_armed(*p)).count();
        assert_eq!(armed, self.state.requests.armed);
        if self.is_sound {
            let all = self.free.len() + self.state.waiting.len() + data + self.unseen;
            let pages = if self.memory.len() > 1 { PAGES + ADDED } else { PAGES };
            assert_eq!(all, pages, "a page is lost or in two hands");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn scripts_do_no_harm(script in prop::collection::vec(any::<u8>(), 0..600)) {
            super::play(&script);
        }
    }
}
