//! What balloons, free-page reporting, virtio-mem and memory hot-plug do, all the time and under
//! load. A thread of its own takes away pages that no frame uses. Every byte is checked.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use crate::support::attack::PLAIN;
use crate::support::vsock::{VsockBackend, pattern, read_exact};
use crate::support::{Backend, PATIENCE, Peer, Vm, frames, in_netns};
use rustix::fs::FallocateFlags;
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::vsock::{PayloadPool, StackOptions, VsockOptions};
use zerowire_guest::{GuestAddr, GuestMemory, Transport};
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::random::Random;
use zerowire_vhost_user::protocol as p;

/// Rings lie here.
const RINGS: GuestAddr = GuestAddr(0);
/// Frames lie here.
const DATA: GuestAddr = GuestAddr(1 << 32);
/// Memory that is plugged and unplugged.
const PLUGGED: GuestAddr = GuestAddr(2 << 32);

const PAGE: usize = 4096;
/// A frame has a slot of its own, of a few pages.
const SLOT_PAGES: usize = 4;
const SLOT_BYTES: usize = SLOT_PAGES * PAGE;
/// virtio-mem plugs and unplugs blocks of 2 MiB.
const BLOCK_BYTES: usize = 2 << 20;
const BLOCKS: usize = 8;
const SLOTS_A_BLOCK: usize = BLOCK_BYTES / SLOT_BYTES;

/// Pages taken away from each device.
const PUNCHES: u64 = 34_000;

const FREE: u8 = 0;
const IN_USE: u8 = 1;
const TAKEN: u8 = 2;

fn punch(file: BorrowedFd<'_>, at: u64, len: usize) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, at, len as u64).expect("punched");
}

/// Which slots are whose.
struct Slots {
    states: Vec<AtomicU8>,
    punched: AtomicU64,
    blocks: AtomicU64,
    stop: AtomicBool,
}

impl Slots {
    fn new() -> Self {
        Self {
            states: (0..BLOCKS * SLOTS_A_BLOCK).map(|_| AtomicU8::new(FREE)).collect(),
            punched: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    fn claim(&self, slot: usize, by: u8) -> bool {
        self.states[slot].compare_exchange(FREE, by, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn free(&self, slot: usize) {
        self.states[slot].store(FREE, Ordering::Release);
    }

    /// A slot for a frame.
    fn pick(&self, random: &mut Random) -> usize {
        loop {
            let slot = random.below(self.states.len());
            if self.claim(slot, IN_USE) {
                return slot;
            }
        }
    }

    /// Takes pages that no frame uses, and now and then a whole block, until told to stop.
    fn discard(&self, memory: &GuestMemory) {
        let region = memory.regions()[1].clone();
        let (mut random, mut unplugged) = (Random::new(99), None);
        while !self.stop.load(Ordering::Acquire) {
            let slot = random.below(self.states.len());
            if self.claim(slot, TAKEN) {
                let page = slot * SLOT_PAGES + random.below(SLOT_PAGES);
                punch(region.file(), region.file_offset() + (page * PAGE) as u64, PAGE);
                self.free(slot);
                self.punched.fetch_add(1, Ordering::Relaxed);
            }
            if random.below(256) == 0 {
                if let Some(block) = unplugged.take() {
                    self.block(block).for_each(|slot| self.free(slot));
                }
                let block = random.below(BLOCKS);
                let mine: Vec<_> = self.block(block).filter(|slot| self.claim(*slot, TAKEN)).collect();
                if mine.len() < SLOTS_A_BLOCK {
                    mine.into_iter().for_each(|slot| self.free(slot));
                } else {
                    punch(region.file(), region.file_offset() + (block * BLOCK_BYTES) as u64, BLOCK_BYTES);
                    self.blocks.fetch_add(1, Ordering::Relaxed);
                    unplugged = Some(block);
                }
            }
        }
    }

    fn block(&self, block: usize) -> std::ops::Range<usize> {
        block * SLOTS_A_BLOCK..(block + 1) * SLOTS_A_BLOCK
    }

    fn is_done(&self) -> bool {
        self.punched.load(Ordering::Relaxed) >= PUNCHES && self.blocks.load(Ordering::Relaxed) > 0
    }
}

/// The guest's address of a page of a slot.
fn address(slot: usize, page: usize) -> u64 {
    DATA.0 + (slot * SLOT_BYTES + page * PAGE) as u64
}

/// Both directions of a queue pair, a few frames at a time.
struct Traffic<'a> {
    memory: &'a GuestMemory,
    slots: &'a Slots,
    tx: RawQueue,
    rx: RawQueue,
    random: Random,
    /// Pages of a frame at most.
    most: usize,
    moved: u16,
}

const BATCH: u16 = 8;

impl Traffic<'_> {
    /// Sends and receives a batch.
    fn run(&mut self, peer: &mut Peer, heads: u64) {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for i in 0..BATCH {
            let number = u32::from(self.moved) << 8 | u32::from(i);
            let (slot, into) = (self.slots.pick(&mut self.random), self.slots.pick(&mut self.random));
            let pages = 1 + self.random.below(self.most);
            let frame = frames::frame(number, 18 + pages * PAGE - self.random.below(PAGE - 1));
            let (head, rest) = frame.split_at(18);
            let at = heads + 64 * u64::from(i);
            self.write(at, &[&[0; 12], head].concat());
            let mut chain = vec![RawDesc { addr: at, len: 30, ..RawDesc::default() }];
            let first = self.random.below(SLOT_PAGES);
            for (n, bytes) in rest.chunks(PAGE).enumerate() {
                let addr = address(slot, (first + n) % SLOT_PAGES);
                self.write(addr, bytes);
                chain.push(RawDesc { addr, len: bytes.len() as u32, ..RawDesc::default() });
            }
            self.tx.write_chain(i * 8, &chain);
            self.tx.offer(i * 8);
            sent.push((slot, frame));
            let addr = address(into, self.random.below(SLOT_PAGES));
            self.rx.write_desc(i, RawDesc { addr, len: PAGE as u32, flags: DESC_WRITE, next: 0 });
            self.rx.offer(i);
            received.push((into, addr, frames::frame(number, 60 + self.random.below(1400))));
        }
        self.rx.kick().expect("a kick");
        self.tx.kick().expect("a kick");
        received.iter().for_each(|(_, _, frame)| peer.send(frame));
        self.moved = self.moved.wrapping_add(1);
        let used = self.moved.wrapping_mul(BATCH);
        assert!(self.tx.wait_used(used, PATIENCE), "the chains come back");
        for (slot, frame) in sent {
            assert!(peer.expect().bytes == frame, "guest to host");
            self.slots.free(slot);
        }
        assert!(self.rx.wait_used(used, PATIENCE), "the frames come");
        for (slot, addr, frame) in received {
            let mut got = Vec::new();
            let view = self.memory.at(GuestAddr(addr + 12), frame.len()).expect("guest memory");
            view.append_to(0, frame.len(), &mut got);
            assert!(got == frame, "host to guest");
            self.slots.free(slot);
        }
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        self.memory.at(GuestAddr(addr), bytes.len()).expect("guest memory").write(0, bytes);
    }
}

#[test]
fn no_byte_of_a_frame_is_wrong_while_pages_go_and_come() {
    in_netns(|| {
        veth("v0", "v1", 1, 9000);
        let tap = |name| (Vm::new(name), name, SLOT_PAGES);
        let cases = [
            tap("zwgive"),
            tap("zwgivetab"),
            (Vm::on("zwgivep", "packet:v0,rings=off"), "v1", 2),
            (Vm::on("zwgivepr", "packet:v0,rings=on"), "v1", 2),
        ];
        for (vm, far, most) in cases {
            let name = vm.name;
            let backend = Backend::start(&[vm]);
            let mut peer = Peer::new(far);
            let regions = [(RINGS, 4 << 20), (DATA, BLOCKS * BLOCK_BYTES)];
            let memory = GuestMemory::new(&regions).expect("guest memory");
            // One front end sends the whole table each time (SET_MEM_TABLE), the others a region.
            let without = if name == "zwgivetab" { p::CONFIGURE_MEM_SLOTS } else { 0 };
            let mut transport = backend.connect_without(name, without);
            transport.negotiate(PLAIN).expect("features");
            transport.share_memory(&memory).expect("shared memory");
            let tx = RawQueue::start(&memory, &mut transport, 1, 64).expect("a queue");
            let rx = RawQueue::start(&memory, &mut transport, 0, 64).expect("a queue");
            let slots = Slots::new();
            // A frame's head lies in the region of the rest: all of it can be registered as one.
            let heads = address(0, 0);
            assert!(slots.claim(0, IN_USE));
            let (mut plugs, mut batches) = (0u32, 0);
            std::thread::scope(|scope| {
                let discarding = scope.spawn(|| slots.discard(&memory));
                let moving = scope.spawn(|| {
                    let memory = &memory;
                    let random = Random::new(5);
                    let mut traffic = Traffic { memory, slots: &slots, tx, rx, random, most, moved: 0 };
                    while !slots.stop.load(Ordering::Acquire) {
                        traffic.run(&mut peer, heads);
                        batches += 1;
                        if batches >= 300 && slots.is_done() {
                            slots.stop.store(true, Ordering::Release);
                        }
                    }
                });
                // A module of memory comes and goes meanwhile.
                while !moving.is_finished() && !discarding.is_finished() {
                    let region = memory.add_region(PLUGGED, BLOCK_BYTES).expect("a region");
                    transport.add_memory(&region).expect("plugged");
                    transport.remove_memory(&region).expect("unplugged");
                    memory.remove_region(PLUGGED).expect("removed");
                    plugs += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                // One that failed must not be waited for by the other.
                slots.stop.store(true, Ordering::Release);
            });
            assert!(slots.is_done() && plugs > 0, "{name}");
            let stats = backend.stats(name);
            assert_eq!((stats.ring_errors, stats.last_error), (0, None), "{name}");
            let dropped = [stats.transmit.totals.dropped_total(), stats.receive.totals.dropped_total()];
            assert_eq!(dropped, [0, 0], "{name}");
        }
    });
}

/// The same for streams. One half of what the guest sends from is under way while pages of the
/// other half are taken. Receive buffers lose their pages before the device has them again. A
/// module of memory comes and goes.
#[test]
fn no_byte_of_a_stream_is_wrong_while_pages_go_and_come() {
    const LEN: usize = 256 << 10;
    let backend = VsockBackend::one();
    let options = VsockOptions { rx_buffer_len: 16 << 10, rx_align_payload: true, ..VsockOptions::default() };
    let mut guest = backend.guest_with("vm", &options, StackOptions::default());
    let listener = backend.listen("vm", 1234);
    let conn =
        guest.stack.connect_in_place(2, 1234, zerowire_guest::vsock::SocketType::Stream).expect("asked");
    assert!(guest.stack.wait_connected(conn, PATIENCE).expect("a stack"), "accepted");
    let mut stream = crate::support::vsock::accept(&listener);
    let memory = guest.memory.clone();
    let halves = [0, 1].map(|_| PayloadPool::new(&memory, LEN, Some(PAGE as u32)).expect("guest memory"));
    let locks = [Mutex::new(()), Mutex::new(())];
    let (stop, punched) = (AtomicBool::new(false), AtomicU64::new(0));
    // Which region an address of this process lies in, and where in the file.
    let in_file = |at: u64| {
        let region = memory
            .regions()
            .into_iter()
            .find(|r| (r.user_addr()..r.user_addr() + r.len() as u64).contains(&at));
        let region = region.expect("guest memory");
        let place = region.file_offset() + (at - region.user_addr());
        (region, place)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(3);
            while !stop.load(Ordering::Acquire) {
                let half = random.below(2);
                match locks[half].try_lock() {
                    Ok(_guard) => {
                        let page = random.below(LEN / PAGE) * PAGE;
                        let (region, at) = in_file(halves[half].memory().user_addr() + page as u64);
                        punch(region.file(), at, PAGE);
                        punched.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                    Err(TryLockError::Poisoned(_)) => return,
                }
            }
        });
        let mut buffers = 0u64;
        let mut round = 0;
        while round < 50 || punched.load(Ordering::Relaxed) < PUNCHES {
            round += 1;
            let half = round % 2;
            let guard = locks[half].lock().expect("no panic");
            let (out, back) = (pattern(LEN, round), pattern(LEN, round + 1_000_000));
            halves[half].memory().write(0, &out);
            let mut got_back = Vec::new();
            let mut writer = stream.try_clone().expect("a descriptor");
            let (reading, writing) = std::thread::scope(|host| {
                let reading = host.spawn(|| read_exact(&mut stream, LEN));
                let writing = host.spawn(|| writer.write_all(&back));
                let before = guest.stack.counters().payload_sent;
                // A module of memory comes with the first packets, and goes while there are more.
                let mut module = None;
                while got_back.len() < LEN || !reading.is_finished() {
                    if guest.stack.counters().payload_sent - before < LEN as u64 {
                        guest.stack.send_from_pool(conn, &halves[half], LEN, 1).expect("sent");
                    }
                    let transport = guest.driver.transport();
                    let region = module.get_or_insert_with(|| {
                        let region = memory.add_region(PLUGGED, BLOCK_BYTES).expect("a region");
                        transport.add_memory(&region).expect("plugged");
                        region
                    });
                    if !got_back.is_empty() && memory.remove_region(PLUGGED).is_ok() {
                        transport.remove_memory(region).expect("unplugged");
                    }
                    guest.stack.turn(Duration::from_micros(300)).expect("a turn");
                    while let zerowire_guest::vsock::Dequeued::Packets(lease) =
                        guest.stack.dequeue(conn).expect("the connection goes on")
                    {
                        lease.append_to(&mut got_back);
                        for packet in lease.packets().filter(|p| p.is_in_place()) {
                            // Its whole pages are the guest's own until the lease ends.
                            let (start, end) =
                                (packet.as_ptr().addr(), packet.as_ptr().addr() + packet.len());
                            let first = start.next_multiple_of(PAGE);
                            for page in (first..end - end % PAGE).step_by(PAGE) {
                                let (region, at) = in_file(page as u64);
                                punch(region.file(), at, PAGE);
                                buffers += 1;
                            }
                        }
                    }
                }
                (reading.join().expect("read"), writing.join().expect("a thread"))
            });
            writing.expect("written");
            if let Ok(region) = memory.remove_region(PLUGGED) {
                guest.driver.transport().remove_memory(&region).expect("unplugged");
            }
            guest.stack.flush(PATIENCE).expect("all chains come back");
            assert!(reading == out, "guest to host, round {round}");
            assert!(got_back == back, "host to guest, round {round}");
            drop(guard);
        }
        stop.store(true, Ordering::Release);
        assert!(buffers > 1000, "{buffers} pages of receive buffers were taken");
    });
    let stats = backend.stats("vm").totals;
    assert_eq!((stats.ring_errors, stats.resets), (0, 0));
}
