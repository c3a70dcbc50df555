//! The state machine under a kernel of its own, which empties and fills at random, and under
//! completions that no kernel sends.

use super::*;
use crate::area::{self, Area, AreaOptions, Pages};
use crate::recv::core::{RecvConnection, SocketShape};
use crate::recv::receiver::new_core;
use crate::recv::zcrx::refill::RefillRing;
use crate::recv::{Arrival, ConnectionId, RecvBackend, RecvOptions, What};
use proptest::prelude::*;
use std::collections::HashMap;

/// Of the first area, and with the one that is added.
const FIRST: usize = 4;
const PAGES: usize = 6;
/// The areas' numbers, above the offsets' bits: those that the kernel would give, and those that it
/// could.
const TOKENS: [[u64; 2]; 2] = [[0, 1 << AREA_SHIFT], [5 << AREA_SHIFT, 1 << AREA_SHIFT]];

fn core(connections: u32) -> RecvState {
    let options = RecvOptions {
        backend: RecvBackend::NoDevice,
        buffer_bytes: 4096,
        buffers: FIRST,
        share: Some(3),
        ..RecvOptions::default()
    };
    let mut core = new_core(&options).unwrap();
    for place in 0..connections {
        let id = ConnectionId { place, generation: 1 };
        core.connections.push(RecvConnection::new(id, SocketShape::Stream));
    }
    core.holdings.grow(connections as usize);
    core
}

fn state(core: &RecvState, has_device: bool, token: u64) -> ZcrxState {
    let cut = AreaCut { area_bytes: FIRST * 4096, buffer_bytes: 4096, token };
    let areas = Areas::new(core.pool.area(0).unwrap().clone(), cut);
    ZcrxState::new(core.holdings.slots(), &core.pool, Arc::new(areas), has_device.then(Arc::default))
}

/// The kernel has a second area from now on, which the state machine hears of by `learn` or by a
/// completion.
fn append(areas: &Areas, token: u64) -> Area {
    let options = AreaOptions { buffer_bytes: 4096, buffers: PAGES - FIRST, pages: Pages::Normal };
    let area = Area::new(options).unwrap();
    areas.add(area.clone(), (PAGES - FIRST) * 4096, || Ok(token)).unwrap().unwrap();
    area
}

/// The buffers of an area, by the kernel's names for them.
fn memory(area: &Area, token: u64) -> impl Iterator<Item = (u64, area::Lease)> {
    std::iter::from_fn(|| area.lease()).map(move |lease| (token | lease.offset() as u64, lease))
}

/// What the kernel does to the receive of one connection (io_uring/zcrx.c).
#[derive(Debug, Default)]
struct Stream {
    /// In the kernel, and what is left of its bound (0: none).
    armed: Option<u32>,
    sent: u64,
    seen: u64,
    ended: bool,
}

const TOTAL: u64 = 20_000;

/// The byte at a position.
fn byte(place: u32, at: u64) -> u8 {
    (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (place as u8) << 7
}

/// A kernel without a device.
struct Model {
    tokens: [u64; 2],
    /// The pages of all areas, as the kernel has them: to write.
    memory: HashMap<u64, area::Lease>,

    core: RecvState,
    state: ZcrxState,
    free: Vec<u64>,
    /// Entries of the refill ring that the kernel has not taken.
    ring: VecDeque<u64>,
    book: RefillRing,
    head: u32,
    completions: VecDeque<WideCqe>,
    streams: Vec<Stream>,
    leases: Vec<Arrival>,
}

impl Model {
    fn new(connections: u32, tokens: [u64; 2]) -> Self {
        let core = core(connections);
        let mut state = state(&core, false, tokens[0]);
        (0..connections).for_each(|p| state.requests.add(p));
        Self {
            state,
            tokens,
            memory: memory(core.pool.area(0).unwrap(), tokens[0]).collect(),
            free: (0..FIRST as u64).map(|p| tokens[0] | (p * 4096)).collect(),
            ring: VecDeque::new(),
            book: RefillRing::new(8),
            head: 0,
            completions: VecDeque::new(),
            core,
            streams: (0..connections).map(|_| Stream::default()).collect(),
            leases: Vec::new(),
        }
    }

    fn pages(&self) -> usize {
        self.memory.len()
    }

    /// One more area: added here, or by another receiver (`elsewhere`) that shares the first one.
    fn append(&mut self, elsewhere: bool) {
        if self.pages() == PAGES {
            return;
        }
        let area = append(&self.state.areas, self.tokens[1]);
        self.memory.extend(memory(&area, self.tokens[1]));
        if !elsewhere {
            self.state.learn(&self.core.pool);
        }
        // So that every page has a slot; another receiver's area brings none.
        self.state.make_room(&mut self.core, PAGES - FIRST, 3);
        self.free.extend((0..(PAGES - FIRST) as u64).map(|p| self.tokens[1] | (p * 4096)));
    }

    /// As the back end submits.
    fn submit(&mut self) {
        while let Some(place) = self.state.to_cancel.pop_front() {
            let found = self.streams[place as usize].armed.take().is_some();
            let end = |user_data, result| WideCqe { user_data, result, ..WideCqe::default() };
            if found {
                self.completions.push_back(end(recv_data(place), -libc::ECANCELED));
            }
            let result = if found { 0 } else { -libc::ENOENT };
            self.completions.push_back(end(cancel_data(place), result));
        }
        while let Some((place, bound)) = self.state.next_arm(&self.core) {
            assert!(self.streams[place as usize].armed.replace(bound).is_none(), "armed twice");
        }
    }

    /// The kernel receives `len` bytes on `place`.
    fn serve(&mut self, place: u32, len: u32, queue: usize) {
        let stream = &mut self.streams[place as usize];
        let Some(bound) = stream.armed else { return };
        let left = (TOTAL - stream.sent).min(if bound == 0 { u64::MAX } else { bound.into() });
        let len = len.min(left as u32);
        let end = |result| WideCqe { user_data: recv_data(place), result, ..WideCqe::default() };
        if len == 0 {
            stream.armed = None;
            self.completions.push_back(end(0));
        } else if self.completions.len() >= queue {
            stream.armed = None;
            self.completions.push_back(end(-libc::ENOSPC));
        } else if let Some(page) = self.free.pop() {
            // It is free in the model, so that no received lease covers it.
            let memory = self.memory.get_mut(&page).unwrap();
            for (at, to) in (stream.sent..).zip(&mut memory[..len as usize]) {
                *to = byte(place, at);
            }
            stream.sent += u64::from(len);
            self.completions.push_back(WideCqe { extra: page, flags: CQE_F_MORE, ..end(len as i32) });
            if bound != 0 {
                stream.armed = Some(bound - len);
                if bound == len {
                    stream.armed = None;
                    self.completions.push_back(end(0));
                }
            }
        } else {
            stream.armed = None;
            self.completions.push_back(end(-libc::ENOMEM));
        }
    }

    fn drain(&mut self) {
        let mut out = Vec::new();
        let Self { state, core, completions, .. } = self;
        assert!(state.take_all(core, || completions.pop_front()), "every page has a slot");
        core.take_arrivals(&mut out);
        for arrival in out {
            let place = arrival.connection.place;
            let stream = &mut self.streams[place as usize];
            assert!(!stream.ended, "something after the end");
            match &arrival.what {
                What::Data(lease) => {
                    for b in lease.iter() {
                        assert_eq!(*b, byte(place, stream.seen), "connection {place}, byte {}", stream.seen);
                        stream.seen += 1;
                    }
                    self.leases.push(arrival);
                }
                What::End => {
                    assert_eq!(stream.seen, TOTAL, "the end came early");
                    stream.ended = true;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Leases come back, the refill ring is written, and flushed if so.
    fn give_back(&mut self, count: usize, flush: bool) {
        self.leases.drain(..count.min(self.leases.len()));
        let Self { state, core, ring, book, .. } = self;
        core.collect(|slot| state.returned(slot));
        while let Some(place) = core.eased.pop() {
            if core.may_receive(place) {
                state.requests.queue(place);
            }
        }
        book.publish(&mut state.waiting, self.head, |_, entry| ring.push_back(entry.off));
        if flush {
            self.head = self.head.wrapping_add(ring.len() as u32);
            self.free.extend(self.ring.drain(..));
            self.state.feed();
        }
        let all = self.free.len() + self.ring.len() + self.leases.len() + self.state.waiting.len();
        let named = self.completions.iter().filter(|c| c.result > 0).count();
        assert_eq!(all + named, self.pages(), "a page is lost or in two hands");
    }
}

#[derive(Clone, Copy, Debug)]
enum ModelStep {
    Serve(u32, u32),
    Submit,
    Drain,
    GiveBack(usize, bool),
    Stop(u32),
    Append(bool),
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        4 => (0..2u32, prop_oneof![Just(4096u32), 1..4096u32]).prop_map(|(p, l)| ModelStep::Serve(p, l)),
        2 => Just(ModelStep::Submit),
        2 => Just(ModelStep::Drain),
        2 => (0..4usize, any::<bool>()).prop_map(|(c, f)| ModelStep::GiveBack(c, f)),
        1 => (0..2u32).prop_map(ModelStep::Stop),
        1 => any::<bool>().prop_map(ModelStep::Append),
    ]
}

proptest! {
    /// Whatever the kernel and the program do in which order, with a second area from some moment
    /// on. No byte is lost, doubled or misplaced, and no page is written while it is lent. In the
    /// end all pages are back.
    #[test]
    fn nothing_is_lost(
        steps in prop::collection::vec(step(), 0..120),
        queue in 1..6usize,
        tokens in prop::sample::select(TOKENS.to_vec()),
    ) {
        let mut model = Model::new(2, tokens);
        let mut stopped = [false; 2];
        for step in steps {
            match step {
                ModelStep::Serve(place, len) => model.serve(place, len, queue),
                ModelStep::Submit => model.submit(),
                ModelStep::Drain => model.drain(),
                ModelStep::GiveBack(count, flush) => model.give_back(count, flush),
                ModelStep::Append(elsewhere) => model.append(elsewhere),
                ModelStep::Stop(place) => {
                    stopped[place as usize] |= !model.state.unwant(place);
                }
            }
        }
        // A stop takes a connection off the list until the receiver resumes it; all else goes on by
        // itself.
        for place in (0..2).filter(|p| stopped[*p as usize] && model.core.may_receive(*p)) {
            model.state.requests.queue(place);
        }
        for _ in 0..200 {
            model.submit();
            (0..2).for_each(|p| model.serve(p, 4096, queue));
            model.drain();
            model.give_back(usize::MAX, true);
        }
        for (place, stream) in model.streams.iter().enumerate() {
            prop_assert!(stream.ended, "connection {} stands at {} of {}", place, stream.seen, TOTAL);
        }
        prop_assert_eq!((model.free.len(), model.state.requests.armed), (model.pages(), 0));
    }

    /// No sequence of completions makes it panic, lend a byte outside of the area, or lose a slot.
    #[test]
    fn hostile_completions_do_no_harm(
        all in prop::collection::vec(hostile(), 0..100),
        has_device in any::<bool>(),
        appended in any::<bool>(),
    ) {
        let mut core = core(3);
        let mut state = state(&core, has_device, 0);
        let mut areas = vec![core.pool.area(0).unwrap().clone()];
        if appended {
            areas.push(append(&state.areas, 1 << AREA_SHIFT));
        }
        (0..3).for_each(|p| state.requests.add(p));
        let slots = core.holdings.slots();
        let mut out = Vec::new();
        for (cqe, copied, arm) in all {
            if arm {
                while state.next_arm(&core).is_some() {}
                state.to_cancel.clear();
                state.feed();
            }
            state.copied(copied);
            let mut one = Some(cqe);
            let taken = state.take_all(&mut core, || one.take());
            core.take_arrivals(&mut out);
            prop_assert!(taken || core.holdings.free() == 0);
            let is_inside = |lease: &[u8]| {
                areas.iter().any(|area| {
                    let offset = (lease.as_ptr() as usize).wrapping_sub(area.base() as usize);
                    offset.checked_add(lease.len()).is_some_and(|end| end <= area.len())
                })
            };
            prop_assert!(out.iter().all(|a| !matches!(&a.what, What::Data(lease) if !is_inside(lease))));
            let lent = out.iter().filter(|a| matches!(a.what, What::Data(_))).count();
            prop_assert_eq!(core.holdings.free() + lent, slots);
            prop_assert_eq!(state.requests.armed, (0..3).filter(|p| state.is_armed(*p)).count());
        }
        out.clear();
        core.collect(|slot| state.returned(slot));
        prop_assert_eq!(core.holdings.free(), slots);
    }
}

fn hostile() -> impl Strategy<Value = (WideCqe, u64, bool)> {
    let user_data = prop_oneof![
        8 => (0..5u32).prop_map(recv_data),
        2 => (0..5u32).prop_map(cancel_data),
        1 => prop::sample::select(vec![BELL, EVENT, CANCEL_ALL]),
        1 => any::<u64>(),
    ];
    let result = prop_oneof![
        4 => 0..5000i32,
        2 => prop::sample::select(vec![-libc::ENOMEM, -libc::ENOSPC, -libc::ECANCELED, -libc::ECONNRESET, i32::MIN]),
        1 => any::<i32>(),
    ];
    let offset = || 0..(FIRST as u64 * 4096 + 5000);
    let second = offset().prop_map(|o| 1 << AREA_SHIFT | o);
    let extra = prop_oneof![4 => offset(), 3 => second, 1 => any::<u64>()];
    (user_data, result, 0..4u32, extra, any::<u32>(), any::<bool>()).prop_map(
        |(user_data, result, flags, extra, copied, arm)| {
            (WideCqe { user_data, result, flags, extra }, copied.into(), arm)
        },
    )
}

#[test]
fn the_ledger_follows_what_the_kernel_says_it_copied() {
    let mut core = core(1);
    let mut state = state(&core, true, 0);
    state.requests.add(0);
    assert!(state.next_arm(&core).is_some());
    let piece = |state: &mut ZcrxState, core: &mut RecvState, page: u64, len| {
        let mut one =
            Some(WideCqe { user_data: recv_data(0), result: len, flags: CQE_F_MORE, extra: page * 4096 });
        assert!(state.take_all(core, || one.take()));
    };
    piece(&mut state, &mut core, 0, 1000);
    state.copied(300);
    piece(&mut state, &mut core, 1, 300);
    piece(&mut state, &mut core, 2, 50);
    let totals = core.counters.snapshot();
    assert_eq!((totals.zero_copied_bytes, totals.bytes), (1050, 1350));
}
