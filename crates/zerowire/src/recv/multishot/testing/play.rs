//! For fuzzing: the state machine under completions that bytes describe, with checks after each.

use super::super::machine::{BELL, CANCEL, ReceiveMachine};
use crate::recv::core::{RecvConnection, RecvState, SocketShape};
use crate::recv::receiver::new_core;
use crate::recv::{Arrival, ConnectionId, RecvOptions, What};
use std::collections::{HashSet, VecDeque};
use zerowire_sys::uring::ring::Cqe;

const SLOTS: usize = 16;
const BYTES: usize = 64;
const PLACES: u32 = 4;
const ERRORS: [i32; 6] =
    [libc::ENOBUFS, libc::ECANCELED, libc::ECONNRESET, libc::EINTR, libc::ECONNREFUSED, libc::EIO];

/// The side of the kernel, and of the program that holds leases.
struct Play {
    core: RecvState,
    machine: ReceiveMachine,
    /// Buffers that the kernel has, in the order of the ring.
    ring: VecDeque<u16>,
    /// Lengths of the ring's entries.
    lens: [u32; SLOTS],
    position: u16,
    held: Vec<Arrival>,
    /// Only what a kernel does has happened.
    is_sound: bool,
}

/// Bytes as instructions: four each. The first byte of all says whether completions may be such
/// that no kernel sends.
///
/// # Panics
/// When a slot is lent twice or lost, or a lease lies outside its buffer.
pub(in crate::recv) fn play(script: &[u8]) {
    let options =
        RecvOptions { buffer_bytes: BYTES, buffers: SLOTS, share: Some(6), ..RecvOptions::default() };
    let Ok(core) = new_core(&options) else { return };
    let mut play = Play {
        core,
        machine: ReceiveMachine::new(SLOTS, 2, SLOTS),
        ring: VecDeque::new(),
        lens: [BYTES as u32; SLOTS],
        position: 0,
        held: Vec::new(),
        is_sound: true,
    };
    for place in 0..PLACES {
        play.connect(place);
    }
    let Some((mode, script)) = script.split_first() else { return };
    for step in script.chunks_exact(4) {
        play.post();
        play.arm();
        match (step[0] % 8, mode % 2) {
            (0..=3, _) => play.receive(step),
            (4, _) => play.give_back(step[1]),
            (5, _) => play.end(step),
            (_, 0) => play.give_back(u8::MAX),
            _ => play.nonsense(step),
        }
        play.check();
    }
    play.held.clear();
    play.collect();
    assert_eq!(play.core.holdings.lent(), 0, "all leases are back");
    play.check();
}

impl Play {
    fn connect(&mut self, place: u32) {
        let kind = if place.is_multiple_of(2) { SocketShape::Stream } else { SocketShape::Datagram };
        let id = ConnectionId { place, generation: 1 };
        let connection = RecvConnection::new(id, kind);
        match self.core.connections.get_mut(place as usize) {
            Some(old) => *old = connection,
            None => self.core.connections.push(connection),
        }
        self.core.holdings.grow(self.core.connections.len());
        self.machine.requests.add(place);
    }

    /// As the back end, without a ring.
    fn post(&mut self) {
        self.machine.turn();
        assert!((2..=SLOTS).contains(&self.machine.depth));
        while self.machine.posted.count < self.machine.depth
            && let Some(slot) = self.core.holdings.take()
        {
            let position = self.position % SLOTS as u16;
            self.machine.posted.put(slot as u16, position);
            self.lens[position as usize] = BYTES as u32;
            self.ring.push_back(slot as u16);
            self.position = self.position.wrapping_add(1);
        }
    }

    fn arm(&mut self) {
        while let Some(place) = self.machine.requests.next(&self.core) {
            self.machine.arm(place);
        }
        self.machine.to_cancel.clear();
    }

    fn complete(&mut self, user_data: u64, result: i32, flags: u32) {
        let Self { machine, core, held, lens, .. } = self;
        machine.complete(core, Cqe { user_data, result, flags }, |p| lens[p as usize % SLOTS]);
        core.take_arrivals(held);
    }

    fn armed(&self, place: u8) -> Option<u64> {
        let place = u32::from(place) % PLACES;
        self.machine.requests.all.get(place as usize).filter(|r| r.armed)?;
        self.machine.user_data(place)
    }

    /// A request fills one buffer, or as many as a bundle takes; without any it ends.
    fn receive(&mut self, step: &[u8]) {
        let Some(user_data) = self.armed(step[1]) else { return };
        let wanted = usize::from(step[2]) + 1;
        let more = u32::from(step[3] & 1) << 1;
        let Some(first) = self.ring.front().copied() else {
            return self.complete(user_data, -libc::ENOBUFS, 0);
        };
        let mut bytes = 0;
        while bytes < wanted
            && let Some(_) = self.ring.pop_front()
        {
            bytes = (bytes + BYTES).min(wanted);
        }
        self.complete(user_data, bytes as i32, 1 | more | u32::from(first) << 16);
    }

    fn end(&mut self, step: &[u8]) {
        let Some(user_data) = self.armed(step[1]) else { return };
        let result = if step[2] % 8 == 7 { 0 } else { -ERRORS[usize::from(step[2]) % ERRORS.len()] };
        self.complete(user_data, result, 0);
        if step[3] & 1 == 1 {
            // The program removes it, and the place is used again, unless leases of it are out.
            let place = u32::from(step[1]) % PLACES;
            if self.core.holdings.held(place) == 0 && self.armed(step[1]).is_none() {
                self.connect(place);
            }
        }
    }

    fn nonsense(&mut self, step: &[u8]) {
        self.is_sound = false;
        let user_data = match step[1] % 8 {
            0 => BELL,
            1 => CANCEL | u64::from(step[2]) | u64::from(step[3] & 1) << 63,
            2 => u64::from(step[2]) << 32 | u64::from(step[3]),
            3 => 1 << 63 | u64::from(step[2]),
            n => self.machine.user_data(u32::from(n) % PLACES).unwrap_or(0),
        };
        let result = i32::from_ne_bytes([step[2], step[3], step[1] & 3, step[2] & 0x80]);
        let flags = u32::from(step[3]) & 0xf | u32::from(step[2] % 20) << 16;
        self.lens[usize::from(step[3]) % SLOTS] = u32::from(step[1]);
        self.complete(user_data, result, flags);
    }

    fn give_back(&mut self, count: u8) {
        let keep = self.held.len().saturating_sub(count.into());
        drop(self.held.split_off(keep));
        self.collect();
    }

    fn collect(&mut self) {
        self.core.collect(|_| {});
        while let Some(place) = self.core.eased.pop() {
            self.machine.requests.queue(place);
        }
    }

    fn check(&mut self) {
        self.held.retain(|a| matches!(&a.what, What::Data(l) if !l.is_empty()));
        let (mut buffers, base) = (HashSet::new(), self.core.buffer(0) as usize);
        for arrival in &self.held {
            let What::Data(lease) = &arrival.what else { continue };
            let offset = (lease.as_ptr() as usize).wrapping_sub(base);
            assert!(offset.is_multiple_of(BYTES) && offset / BYTES < SLOTS && lease.len() <= BYTES);
            assert!(buffers.insert(offset), "a buffer is lent twice");
        }
        // What was dropped just now may not be collected yet.
        let lent = self.core.holdings.lent() as usize;
        assert!(lent >= self.held.len());
        let taken = SLOTS - lent - self.core.holdings.free();
        if self.is_sound {
            assert_eq!(taken, self.machine.posted.count, "a buffer is lost");
            assert_eq!(taken, self.ring.len(), "the machine and the kernel don't agree");
            let armed = self.machine.requests.all.iter().filter(|r| r.armed).count();
            assert_eq!(armed, self.machine.requests.armed);
        }
    }
}
