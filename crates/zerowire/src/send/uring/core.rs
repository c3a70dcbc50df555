//! One ring: hands entries over, and reads what comes back into the [`Book`].
//!
//! Entries are pushed with `MSG_DONTWAIT`, so results are there when the call that hands them over returns.
//!
//! Memory: the caller keeps what an entry names until its channel was told. Message headers are only read before the
//! result.

use super::areas::Areas;
use super::book::Book;
use super::engine::EngineOptions;
use super::error::{EngineError, locked_limit};
use super::message::Message;
use super::tombstone::Tombstone;
use crate::uring::SendFeatures;
use crate::uring::ring::{Cqe, SendRing, Threads};
use io_uring::squeue;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Completions read at a time.
const CHUNK: usize = 32;
/// A result that doesn't come at once is asked for again after this long. It only matters if the kernel breaks its word.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks where nothing can be waited for.
const BLIND_PAUSE: Duration = Duration::from_millis(1);
/// Times the kernel may have no memory for requests before the ring is given up.
const MAX_REFUSALS: u32 = 10_000;

/// See the module.
pub(super) struct Core {
    ring: Option<SendRing>,
    // After the ring: memory goes after it.
    pub(super) areas: Areas,
    stone: Tombstone,
    /// Of the ring before this one, if the core has moved and that ring is not freed yet.
    retired: Option<Tombstone>,
    options: EngineOptions,
    /// One sender's own: it follows that sender to another thread.
    pub(super) may_move: bool,
    /// The number of the thread that may hand entries over; `None`: any.
    owner: Option<u64>,
    pub(super) features: SendFeatures,
    flags: &'static str,
    pub(super) book: Book,
    messages: Vec<Message>,
    submissions: usize,
    /// Engines and senders that still use it.
    pub(super) users: usize,
    pub(super) calls: u64,
    /// Times that the queue of completions was too short, and the kernel kept some on its own list.
    pub(super) overflows: u64,
}

impl Core {
    pub(super) fn new(options: &EngineOptions) -> Result<Self, EngineError> {
        let refused = |e: io::Error| match e.raw_os_error() {
            Some(libc::ENOMEM) => EngineError::RingMemlock {
                submissions: options.submissions,
                completions: options.completions,
                limit: locked_limit(),
            },
            _ => EngineError::Refused(crate::uring::refusal(e)),
        };
        let (mut ring, stone) = set_up(options, options.threads).map_err(refused)?;
        let features = crate::uring::send_features().map_err(refused)?;
        let owner = (options.threads == Threads::One).then(thread_number);
        Ok(Self {
            flags: ring.flags(),
            submissions: ring.submissions(),
            ring: Some(ring),
            areas: Areas::default(),
            stone,
            retired: None,
            options: options.clone(),
            may_move: false,
            owner,
            features,
            book: Book::default(),
            messages: Vec::new(),
            users: 1,
            calls: 0,
            overflows: 0,
        })
    }

    /// Set-up flags of the ring, as words.
    pub(super) fn flags(&self) -> &'static str {
        self.flags
    }

    /// Entries that one batch may have.
    pub(super) fn capacity(&self) -> usize {
        self.submissions
    }

    pub(super) fn register(&mut self, area: &crate::area::Area) -> Result<(), EngineError> {
        if !self.is_own_thread() {
            return Err(EngineError::WrongThread);
        }
        match &self.ring {
            Some(ring) => self.areas.register(ring, area),
            None => Err(EngineError::WrongThread),
        }
    }

    /// Whether this thread may hand entries over.
    pub(super) fn is_own_thread(&self) -> bool {
        self.owner.is_none_or(|owner| owner == thread_number())
    }

    /// A place for a sender, which is one more user.
    pub(super) fn attach(&mut self) -> u32 {
        self.users += 1;
        self.book.attach()
    }

    /// At least `count` messages to fill; given back with [`Core::put_messages`].
    pub(super) fn take_messages(&mut self, count: usize) -> Vec<Message> {
        let mut all = std::mem::take(&mut self.messages);
        while all.len() < count {
            all.push(Message::new());
        }
        all
    }

    pub(super) fn put_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// To be called before entries are made and pushed. EEXIST: this is not the thread that may.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.follow();
        if self.is_own_thread() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
    }

    /// Adds an entry to the batch, which has room for it, and fills in its user data.
    ///
    /// # Safety
    /// As [`SendRing::push`]; headers and vectors stay until [`Core::settle`] returned, the memory to be sent until the
    /// channel was told of the id, or [`Core::is_gone`].
    pub(super) unsafe fn push(&mut self, channel: u32, entry: squeue::Entry) -> io::Result<()> {
        let Some(ring) = &mut self.ring else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        let entry = entry.user_data(self.book.token().into());
        // SAFETY: passed on to the caller.
        if !unsafe { ring.push(&entry) } {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        self.book.pushed(channel);
        Ok(())
    }

    /// Hands the batch over and waits for the results, which are there at once. Then [`Book::take_batch`] gives them.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        // A single entry is worked off as it is handed over; the later ones of a chain need the kernel's deferred work,
        // which is done while waiting. Each entry has one result at least, so never more is waited for than comes.
        let (mut refusals, mut want) = (0, if self.book.unsettled() > 1 { self.book.unsettled() } else { 0 });
        loop {
            let Some(ring) = &mut self.ring else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
            if self.book.unsettled() == 0 {
                return Ok(());
            }
            self.calls += 1;
            match ring.enter(want, Some(PATIENCE)) {
                Ok(_) => {}
                // No memory for requests, or completions wait to be read: they are read now.
                Err(e)
                    if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY))
                        && refusals < MAX_REFUSALS =>
                {
                    refusals += 1;
                    std::thread::yield_now();
                }
                Err(e) => {
                    self.give_up();
                    return Err(e);
                }
            }
            self.drain();
            want = self.book.unsettled();
        }
    }

    /// Reads the completions that are there. A system call is made only when the kernel says that it has more.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        self.follow();
        self.drain();
        self.look_after_retired();
        while self.is_own_thread()
            && let Some(ring) = &mut self.ring
            && ring.has_deferred()
        {
            self.overflows += u64::from(ring.has_overflowed());
            self.calls += 1;
            match ring.enter(0, None) {
                Err(e) if !matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => return Err(e),
                _ => {}
            }
            if self.drain() == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Waits for a completion, at most `timeout`, and reads what is there.
    pub(super) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.follow();
        let is_own_thread = self.is_own_thread();
        let Some(ring) = self.ring.as_mut().filter(|_| is_own_thread && self.retired.is_none()) else {
            std::thread::sleep(timeout.min(BLIND_PAUSE));
            return Ok(());
        };
        self.calls += 1;
        match ring.enter(1, Some(timeout)) {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => return Err(e),
            _ => {}
        }
        self.drain();
        Ok(())
    }

    /// For polling: readable when there is something to reap.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.ring.as_ref().map(SendRing::fd)
    }

    /// Closes the ring. What is lent comes back without a notice; [`Core::is_gone`] tells when.
    pub(super) fn give_up(&mut self) {
        self.ring = None;
        self.book.give_up();
    }

    /// Whether the ring was given up and the kernel holds no memory for it any more.
    pub(super) fn is_gone(&self) -> bool {
        self.ring.is_none() && self.retired.is_none() && self.stone.is_gone()
    }

    /// A sender's own ring is for one thread, which is cheaper. When the sender moves, another ring takes its place, for
    /// any thread this time. What the first one lent comes back when the kernel has freed it.
    fn follow(&mut self) {
        if !self.may_move || self.users == 0 || self.is_own_thread() {
            return;
        }
        self.drain();
        let Ok((mut ring, stone)) = set_up(&self.options, Threads::Any) else { return };
        self.flags = ring.flags();
        self.submissions = ring.submissions();
        self.areas.register_again(&ring);
        // The old ring goes here.
        self.ring = Some(ring);
        self.retired = Some(std::mem::replace(&mut self.stone, stone));
        self.owner = None;
        self.book.retire();
        self.look_after_retired();
    }

    /// Tells of the loans of a ring that was left behind, once the kernel has freed it. Whether they were copied is not
    /// known; they count as copied.
    fn look_after_retired(&mut self) {
        if self.retired.as_ref().is_some_and(Tombstone::is_gone) {
            self.retired = None;
            self.book.retired_are_back();
        }
    }

    fn drain(&mut self) -> usize {
        let mut chunk = [Cqe::default(); CHUNK];
        let mut all = 0;
        while let Some(ring) = &mut self.ring {
            let count = ring.take(&mut chunk);
            for cqe in &chunk[..count] {
                self.book.complete(*cqe);
            }
            all += count;
            if count < CHUNK {
                break;
            }
        }
        all
    }
}

fn set_up(options: &EngineOptions, threads: Threads) -> io::Result<(SendRing, Tombstone)> {
    let ring = SendRing::new(options.submissions.max(1), options.completions.max(2), threads)?;
    let stone = Tombstone::new(&ring)?;
    Ok((ring, stone))
}

/// A number that no other thread of this process has or had. (An address would come back with another thread; the
/// standard library's id costs more than the rest of a look.)
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    // Not while the thread's own variables are being dropped: then it is none that ever made a ring.
    NUMBER.try_with(|n| *n).unwrap_or(u64::MAX)
}
