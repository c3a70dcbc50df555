//! Receive: from the port to the guest's buffers.
//!
//! The length of a frame is known only after it was read, and reading it straight into the guest's
//! buffers needs their addresses before. Parsing 64 KiB worth of descriptors for each frame of 60
//! bytes is what made this path slow elsewhere. Here:
//!
//! * A chain is parsed only as far as the next frame is likely to reach. Behind the parsed part the
//!   scatter list ends in scratch memory, so a longer frame is never cut. Its tail is copied
//!   (`overflow` in the ledger), and the next frames are offered more.
//! * A chain that was parsed and not used serves the next frame as it is.
//! * What is offered follows what comes ([`shape`]). *Each* is many reads of one chain each. *Long*
//!   is one read over as many chains as the longest frame may need. *Small* is many reads into
//!   private memory (`small` in the ledger). It serves runs of frames so short that a copy is
//!   cheaper than a scatter list.
//!
//! Chains are given back in exactly the order in which they became available. So the used index
//! alone says where a back end that starts anew has to go on. It has no other memory of what it
//! took.
//!
//! A frame for which the guest has too few buffers waits for the moment. All that come after it in
//! the port's queue wait with it. After [`PATIENCE`] it is dropped and counted.
//!
//! **Ownership.** Parsed chains belong to this side until they are given back; the kernel holds
//! them only within [`Receive::run`].

mod batch;
mod deliver;
mod fit;
mod pending;
mod shape;
mod slots;

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use zerowire::ledger::{CopyReason, Counters, DropReason};

use super::policy::MAX_IOV;
use super::transmit::Turn;
use super::{ETH_HEADER_BYTES, MAX_FRAME_BYTES, PathMode};
use crate::host::HostRing;
use crate::io::{Full, Lists, MAX_BATCH, Op, PortIo};
use crate::memory::{GuestMemory, PrivateMap, access};
use crate::port::TapOffloads;
use crate::ring::{RingError, RxChains, SplitRing};
use pending::Pending;
use shape::{Forecast, Shape};

/// Most reads in a batch.
const READ_BATCH: usize = MAX_BATCH;

/// Scratch memory behind each read, bytes: the longest frame with its header.
pub const SCRATCH_BYTES: usize = (12 + MAX_FRAME_BYTES).next_multiple_of(4096);

/// From one read's scratch memory to the next, bytes. It is not a multiple of the page size, so
/// that their starts don't share the same few lines of the first-level cache.
pub const SCRATCH_STRIDE: usize = SCRATCH_BYTES + 320;

/// How long a frame waits for buffers of the guest: longer than the host may well keep a virtual
/// CPU from running.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// How long a read of the length of recent frames waits for buffers, before it takes those posted.
pub const SETTLE_AFTER: Duration = Duration::from_millis(1);

/// Most reads of several chains each in a batch.
const LONG_BATCH: usize = 8;

/// What the receive side needs besides its ring.
pub struct ReceiveContext<'a> {
    /// The memory that the ring was made for.
    pub memory: &'a GuestMemory,
    /// The port.
    pub io: &'a mut PortIo,
    /// Where to count.
    pub counters: &'a Counters,
}

/// What the guest and the port agreed on.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveSetup {
    /// Frames may span several chains.
    pub mergeable: bool,
    /// Length of the virtio-net header, bytes.
    pub header_len: usize,
    /// The port's MTU, bytes: what an ordinary frame reaches.
    pub mtu: usize,
    /// Scatter or copy.
    pub mode: PathMode,
    /// Frames up to this many bytes, header included, are copied where nothing but such frames
    /// comes.
    pub copybreak: usize,
}

/// How a turn of reading ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveTurn {
    /// Frames given to the guest, and whether it wants to be notified.
    pub turn: Turn,
    /// The port has no frame left for now.
    pub port_empty: bool,
    /// The port's interface is gone.
    pub port_gone: bool,
    /// The guest has no buffer left, or too few.
    pub starved: bool,
    /// A frame, or a read, waits for buffers: run again after [`SETTLE_AFTER`] at the latest.
    pub waiting: bool,
}

/// A read of the batch.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    /// Chains offered, from the front.
    chains: usize,
    /// Bytes that they hold.
    room: usize,
    /// Bytes read, with the header, or a negated errno.
    result: i32,
}

/// The receive side of a queue pair.
#[derive(Debug)]
pub struct Receive {
    host: HostRing,
    chains: RxChains,
    setup: ReceiveSetup,
    /// What an ordinary frame needs, header included.
    ordinary: usize,
    forecast: Forecast,
    batch: usize,
    /// As `batch`, for reads of several chains.
    long_batch: usize,
    /// Frames that were read and for which the guest had too few buffers.
    pending: Pending,
    waiting_since: Option<Instant>,
    /// Timed out waiting for buffers: use what is posted.
    settled: bool,
    lists: Lists,
    reads: Vec<Read>,
    /// One slot for each read, [`SCRATCH_STRIDE`] apart.
    scratch: PrivateMap,
    scratch_dirty: bool,
    /// The guest did not take GUEST_CSUM: `flags` is 0 (virtio 1.3 §5.1.6.4.1), though the kernel
    /// says DATA_VALID.
    clears_flags: bool,
    /// What frames may ask of the guest, where the port does not see to that.
    accepts: Option<TapOffloads>,
    /// A segment of a frame that the guest does not take whole.
    piece: Vec<u8>,
}

impl Receive {
    /// The receive side on `ring`.
    pub fn new(ring: impl Into<HostRing>, setup: ReceiveSetup) -> io::Result<Self> {
        let ordinary = setup.header_len + setup.mtu + ETH_HEADER_BYTES + 8;
        Ok(Self {
            host: ring.into(),
            chains: RxChains::new(),
            setup,
            ordinary,
            forecast: Forecast::new(setup.mergeable, ordinary, setup.copybreak),
            batch: 1,
            long_batch: 1,
            pending: Pending::default(),
            waiting_since: None,
            settled: false,
            lists: Lists::new(READ_BATCH * 4 + LONG_BATCH * MAX_IOV),
            reads: Vec::with_capacity(READ_BATCH),
            scratch: PrivateMap::new(SCRATCH_STRIDE * READ_BATCH)?,
            scratch_dirty: false,
            clears_flags: false,
            accepts: None,
            piece: Vec::new(),
        })
    }

    /// For a port that gives frames with any offloads. Offloads that the guest does not take are
    /// done here, in private memory (`rebuilt` in the ledger), before it gets the frame.
    pub fn accept_only(&mut self, accepts: TapOffloads) {
        self.accepts = Some(accepts);
    }

    /// From now on `flags` of each frame is 0, as a guest without GUEST_CSUM is due.
    pub fn clear_flags(&mut self) {
        self.clears_flags = true;
    }

    /// Gives the guest a frame that did not come by [`Self::run`], with its virtio-net header in
    /// front. If there are too few buffers, the frame waits. The guest sees it when the ring is
    /// published.
    ///
    /// # Errors
    /// The guest broke a rule of the ring.
    pub fn give(
        &mut self,
        frame: &mut [u8],
        reason: CopyReason,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        self.fit_or_hold(frame, reason, cx)
    }

    /// Whether frames wait for buffers.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The ring, and who is notified of it.
    #[inline]
    pub fn host(&self) -> &HostRing {
        &self.host
    }

    /// The ring, and who is notified of it.
    #[inline]
    pub fn host_mut(&mut self) -> &mut HostRing {
        &mut self.host
    }

    /// Gives up the ring.
    pub fn into_host(self) -> HostRing {
        self.host
    }

    /// The ring.
    pub fn ring(&mut self) -> &mut SplitRing {
        &mut self.host.ring
    }

    /// The ring is in other memory: what was learnt of the guest's buffers and frames is forgotten.
    pub fn moved(&mut self) {
        self.forecast = Forecast::new(self.setup.mergeable, self.ordinary, self.setup.copybreak);
        (self.batch, self.long_batch) = (1, 1);
        self.waiting_since = None;
        self.settled = false;
    }

    /// Gives parsed chains back to the ring, to be taken again: before it stops, or its memory
    /// changes. Returns how many frames that waited for buffers are lost with that.
    pub fn release(&mut self) -> usize {
        let lost = self.pending.len();
        self.pending.clear();
        self.host.ring.untake(self.chains.heads());
        self.chains.clear();
        lost
    }

    /// Lets go of scratch memory that overflows have touched, and of long lists.
    pub fn trim(&mut self) {
        self.chains.trim();
        self.pending.trim();
        if std::mem::take(&mut self.scratch_dirty) {
            // No operation is under way.
            self.scratch.release_pages();
        }
    }

    /// Reads one batch of frames.
    #[inline]
    pub fn run(&mut self, cx: &mut ReceiveContext<'_>) -> Result<ReceiveTurn, RingError> {
        if !self.deliver_pending(cx)? {
            return Ok(self.wait(cx));
        }
        let private = self.is_private();
        let likely = self.forecast.likely().clamp(1, self.longest());
        let offered = match self.forecast.shape() {
            _ if private => self.offer_runs(self.batch, |_| likely, true, cx),
            Shape::Long if self.setup.mergeable => self.offer_runs(self.long_batch, |_| likely, false, cx),
            // A guest without mergeable buffers posts chains for the longest frame: parse them only
            // that far, if long frames come.
            Shape::Long => self.offer_each(self.batch, self.longest(), cx),
            _ => self.offer_each(self.batch, self.ordinary, cx),
        };
        let Some((done, broken)) = self.read(offered, private, cx)? else { return Ok(self.wait(cx)) };
        let port_empty = done.frames < done.reads;
        self.batch = match port_empty {
            true => (done.frames + 1).min(READ_BATCH),
            false => (self.batch * 2).min(READ_BATCH),
        };
        if let Some(in_place) = done.in_place {
            self.long_batch = match in_place {
                d if d < done.frames => 1,
                d if d == self.long_batch => (self.long_batch * 2).min(LONG_BATCH),
                d => d.clamp(1, LONG_BATCH),
            };
        }
        let turn = Turn { chains: done.frames, notify: self.host.ring.publish() };
        if let Some(e) = broken {
            return Err(e);
        }
        let waiting = !self.pending.is_empty();
        Ok(ReceiveTurn { turn, port_empty, port_gone: done.port_gone, starved: waiting, waiting })
    }

    /// Whether frames go into private memory first.
    #[inline]
    fn is_private(&self) -> bool {
        self.setup.mode == PathMode::Copy || self.forecast.shape() == Shape::Small || self.rebuilds_most()
    }

    /// Whether nearly each frame of another program's may have to be changed for this guest.
    #[inline]
    fn rebuilds_most(&self) -> bool {
        self.accepts.is_some_and(|a| !a.csum)
    }

    /// How many of the first `frames` reads are what the guest takes.
    #[inline]
    fn sound(&self, frames: usize) -> usize {
        match self.accepts {
            None => frames,
            Some(accepts) => self.first_unsound(frames, accepts).unwrap_or(frames),
        }
    }

    #[inline]
    fn first_unsound(&self, frames: usize, accepts: TapOffloads) -> Option<usize> {
        let mut chain = 0;
        self.reads[..frames].iter().position(|read| {
            // Read once: the guest may write its own buffers, and harms nobody but itself.
            let mut header = [0; fit::HEADER_BYTES];
            access::read(self.chains.segments(chain), 0, &mut header);
            chain += read.chains;
            !fit::passes(&header, accepts) || read.result as usize > self.longest()
        })
    }

    /// The answer where nothing could be read for lack of buffers. What waits longer than
    /// [`PATIENCE`] is given up.
    #[cold]
    fn wait(&mut self, cx: &ReceiveContext<'_>) -> ReceiveTurn {
        let waiting = !self.pending.is_empty() || self.chains.len() > 0;
        if waiting {
            let since = *self.waiting_since.get_or_insert_with(Instant::now);
            if self.pending.is_empty() {
                if since.elapsed() >= SETTLE_AFTER {
                    self.waiting_since = None;
                    self.settled = true;
                    self.forecast.settle_for_less();
                }
            } else if since.elapsed() >= PATIENCE {
                self.waiting_since = None;
                self.pending.pop();
                cx.counters.dropped(DropReason::NoRoom);
            }
        }
        let turn = Turn { chains: 0, notify: self.host.ring.publish() };
        ReceiveTurn { turn, starved: true, waiting, ..ReceiveTurn::default() }
    }

    /// Gives the guest a frame from private memory (without a virtio-net header). Returns whether
    /// there was room.
    pub fn inject(
        &mut self,
        frame: &[u8],
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<bool, RingError> {
        let mut with_header = vec![0u8; self.setup.header_len];
        with_header.extend_from_slice(frame);
        // Frames that wait come first; this one is lost then, as on a wire.
        let room = self.pending.is_empty();
        Ok(room && self.copy_out(&with_header, CopyReason::Metadata, memory, counters)? == Room::Taken)
    }

    /// One read for each of up to `want` chains, parsed for `need` bytes.
    #[inline]
    fn offer_each(
        &mut self,
        want: usize,
        need: usize,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<usize, RingError> {
        self.start(cx);
        for i in 0..want {
            if !self.chains.ensure(i, need, &mut self.host.ring, cx.memory, self.setup.header_len)? {
                break;
            }
            let start = self.lists.end();
            let room = self.append(i, start);
            if room.and_then(|room| self.read_into(1, room, start, i, cx)).is_err() {
                self.lists.truncate(start);
                break;
            }
        }
        Ok(self.reads.len())
    }

    /// Up to `want` reads, each for as many chains as hold the bytes that it needs. A read goes
    /// into its chains, or into scratch memory alone if `private`. So what arrives fits into what
    /// the guest has posted.
    #[inline]
    fn offer_runs(
        &mut self,
        want: usize,
        need: impl Fn(usize) -> usize,
        private: bool,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<usize, RingError> {
        self.start(cx);
        let mut first = 0;
        for read in 0..want {
            let start = self.lists.end();
            let (n, room) = self.chains_for(need(read), first, private, cx)?;
            let queued = n > 0
                && match private {
                    true => self.read_into(0, 0, start, read, cx),
                    false => self.read_into(n, room, start, read, cx),
                }
                .is_ok();
            if !queued {
                self.lists.truncate(start);
                break;
            }
            first += n;
        }
        Ok(self.reads.len())
    }

    /// How many chains from `first` on hold `need` bytes, and how many they hold; 0 where there are
    /// too few and more may come. Appends them to the scatter list, unless the read is `private`.
    #[inline]
    fn chains_for(
        &mut self,
        need: usize,
        first: usize,
        private: bool,
        cx: &ReceiveContext<'_>,
    ) -> Result<(usize, usize), RingError> {
        let start = self.lists.end();
        let (mut n, mut room, mut entries) = (0, 0, 0);
        while room < need {
            let i = first + n;
            if i == self.chains.len() {
                let (need, most) = (need - room, (MAX_IOV - 1).saturating_sub(entries));
                let list = (!private).then_some(start);
                let Some((more, bytes)) = self.plain_chains(need, most, list, cx)? else { return Ok((0, 0)) };
                (n, room, entries) = (n + more, room + bytes, entries + more);
                if more > 0 {
                    continue;
                }
            }
            if !self.chains.ensure(i, need - room, &mut self.host.ring, cx.memory, self.setup.header_len)? {
                // If these are all buffers that the ring can hold, the first read takes them.
                let all_here = self.chains.are_all(&self.host.ring);
                return Ok(if first == 0 && all_here { (n, room) } else { (0, 0) });
            }
            entries += self.chains.segments(i).len();
            if entries > MAX_IOV - 1 {
                break;
            }
            room += match private {
                true => self.chains.room(i),
                false => match self.append(i, start) {
                    Ok(room) => room,
                    Err(Full) => return Ok((0, 0)),
                },
            };
            n += 1;
        }
        Ok((n, room))
    }

    /// Takes up to `most` chains of the usual kind, one segment each, until they hold `need` bytes.
    /// Returns how many that is, and how many bytes they hold. Appends them to the scatter list
    /// that begins at entry `list`, if one is given; None where it has no room for them.
    #[inline]
    fn plain_chains(
        &mut self,
        need: usize,
        most: usize,
        list: Option<usize>,
        cx: &ReceiveContext<'_>,
    ) -> Result<Option<(usize, usize)>, RingError> {
        let (lists, mut full) = (&mut self.lists, false);
        let each = |ptr, len| full |= list.is_some_and(|start| lists.add(start, ptr, len).is_err());
        let taken = self.chains.take_plain(
            (need, most),
            &mut self.host.ring,
            cx.memory,
            self.setup.header_len,
            each,
        )?;
        Ok((!full).then_some(taken))
    }

    /// Appends chain `i` to the scatter list that begins at entry `start`. Returns how many bytes
    /// it holds.
    ///
    /// # Errors
    /// It does not fit, and the list is useless.
    #[inline]
    fn append(&mut self, i: usize, start: usize) -> Result<usize, Full> {
        for s in self.chains.segments(i) {
            self.lists.add(start, s.ptr, s.len as usize)?;
        }
        Ok(self.chains.room(i))
    }

    /// The longest frame with its header, bytes.
    fn longest(&self) -> usize {
        self.setup.header_len + MAX_FRAME_BYTES
    }

    #[inline]
    fn start(&mut self, cx: &mut ReceiveContext<'_>) {
        self.lists.clear();
        self.reads.clear();
        cx.io.clear();
    }

    /// Queues read number `read` into `n` chains, and into scratch memory behind them. The chains
    /// hold `room` bytes and are the scatter list from entry `start` on.
    ///
    /// # Errors
    /// It does not fit, and nothing was queued.
    #[inline]
    fn read_into(
        &mut self,
        n: usize,
        room: usize,
        start: usize,
        read: usize,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(), Full> {
        if room < self.longest() {
            let scratch = &mut self.scratch[scratch_range(read, SCRATCH_BYTES)];
            self.lists.push(libc::iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: SCRATCH_BYTES })?;
        }
        self.reads.push(Read { chains: n, room, result: -libc::EAGAIN });
        let (iov, len) = self.lists.list_from(start);
        let op = Op { slot: read as u16, write: false, iov, len };
        // SAFETY: `lists` never moves, and is not cleared before the batch has run. Guest memory is
        // held by `cx.memory`. Scratch memory is this side's own, a slot for each read.
        unsafe { cx.io.push(op) };
        Ok(())
    }
}

/// Where the first `len` bytes behind a read are in scratch memory.
#[inline]
fn scratch_range(read: usize, len: usize) -> Range<usize> {
    let at = read * SCRATCH_STRIDE;
    at..at + len
}

/// What happened to a frame on its way into the guest's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// It was given to the guest.
    Taken,
    /// The guest has posted too few buffers for it so far.
    Short,
    /// No number of buffers that this guest can post takes it.
    Never,
}
