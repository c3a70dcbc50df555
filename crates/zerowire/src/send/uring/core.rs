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
use super::tombstone::{SOCKET_PLACE, Tombstone};
use crate::uring::SendFeatures;
use crate::uring::ring::{Cqe, SendRing, Threads};
use crate::uring::sqe::Target;
use io_uring::squeue;
use rustix::event::epoll;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
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
    stone: Option<Tombstone>,
    /// Of rings that were closed, until the kernel has freed them all.
    retired: Vec<Tombstone>,
    /// Why the ring was closed for good.
    closed: Option<String>,
    /// On engines that are waited for.
    watch: Option<Watch>,
    options: EngineOptions,
    /// One sender's own: it follows that sender to another thread.
    pub(super) may_move: bool,
    /// The number of the thread that may hand entries over; `None`: any.
    owner: Option<u64>,
    pub(super) features: SendFeatures,
    flags: &'static str,
    pub(super) book: Book,
    /// The socket that is in the ring's table of files.
    file: Option<RawFd>,
    messages: Vec<Message>,
    submissions: usize,
    /// Engines and senders that still use it.
    pub(super) users: usize,
    pub(super) calls: u64,
    /// Times that the queue of completions was too short, and the kernel kept some on its own list.
    pub(super) overflows: u64,
    /// Entries that one call hands over, as if the kernel had no memory for more.
    #[cfg(test)]
    hand_over_at_most: usize,
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
            stone: Some(stone),
            retired: Vec::new(),
            closed: None,
            watch: None,
            options: options.clone(),
            may_move: false,
            owner,
            features,
            book: Book::default(),
            file: None,
            messages: Vec::new(),
            users: 1,
            calls: 0,
            overflows: 0,
            #[cfg(test)]
            hand_over_at_most: usize::MAX,
        })
    }

    /// A descriptor that is readable when there is something to reap, whichever ring is in use.
    pub(super) fn watch(&mut self) -> Result<Arc<OwnedFd>, EngineError> {
        if let Some(watch) = &self.watch {
            return Ok(watch.all.clone());
        }
        if !self.is_own_thread() {
            return Err(EngineError::WrongThread);
        }
        let watch = Watch::new().map_err(EngineError::Watch)?;
        if let Some(ring) = &self.ring {
            ring.signal(&watch.event).map_err(EngineError::Watch)?;
        }
        for stone in &self.retired {
            stone.watch(&watch.all).map_err(EngineError::Watch)?;
        }
        // For what came before.
        watch.set();
        Ok(self.watch.insert(watch).all.clone())
    }

    /// To be called when a channel's notices were taken: others may have some, and a sleeper must hear of them.
    pub(super) fn pass_on(&self) {
        if let Some(watch) = &self.watch
            && self.book.waiting() > 0
        {
            watch.set();
        }
    }

    /// Why the ring was closed for good.
    pub(super) fn closed(&self) -> Option<&str> {
        self.closed.as_deref()
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
            None => Err(EngineError::Closed(self.closed.clone().unwrap_or_default())),
        }
    }

    /// Registers the one socket that uses this ring, which saves the kernel a look-up and a reference an entry. Nothing
    /// comes of it where that fails.
    pub(super) fn register_file(&mut self, socket: RawFd) {
        self.file = self
            .ring
            .as_ref()
            .and_then(|ring| ring.register_file(SOCKET_PLACE, socket).ok())
            .map(|()| socket);
    }

    /// Takes it out of the table, so that closing the socket closes it at once. On another thread than the ring's it goes
    /// with the ring.
    pub(super) fn forget_file(&mut self) {
        if let (Some(_), Some(ring)) = (self.file.take(), &self.ring) {
            let _ = ring.register_file(SOCKET_PLACE, -1);
        }
    }

    /// How an entry names a socket.
    pub(super) fn target(&self, socket: RawFd) -> Target {
        if self.file == Some(socket) { Target::Registered(SOCKET_PLACE) } else { Target::Fd(socket) }
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

    /// To be called before entries are made and pushed. EEXIST: this is not the thread that may. EBADFD: the ring was
    /// closed for good.
    ///
    /// `is_chain`: the entries will be linked, so that one that fails cancels those behind it.
    pub(super) fn begin(&mut self, is_chain: bool) -> io::Result<()> {
        self.follow();
        self.book.begin(is_chain);
        if self.ring.is_none() {
            return Err(no_ring());
        }
        if self.is_own_thread() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
    }

    /// Adds an entry to the batch, which has room for it, and fills in its user data.
    ///
    /// # Safety
    /// As [`SendRing::push`]; headers and vectors stay until [`Core::settle`] returned, and for good if it failed; the
    /// memory to be sent stays until the channel was told of the id.
    pub(super) unsafe fn push(&mut self, channel: u32, entry: squeue::Entry) -> io::Result<()> {
        let Some(ring) = &mut self.ring else { return Err(no_ring()) };
        let entry = entry.user_data(self.book.token().into());
        // SAFETY: passed on to the caller.
        if !unsafe { ring.push(&entry) } {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        self.book.pushed(channel);
        Ok(())
    }

    /// Hands the batch over and waits for the results, which are there at once. Then [`Book::take_batch`] gives them.
    ///
    /// # Errors
    /// EBADFD: the ring failed, and was closed. Then, too, the book knows what was taken.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        let mut refusals = 0;
        while self.book.unsettled() > 0 {
            let Some(ring) = &mut self.ring else { return Err(no_ring()) };
            let held = ring.held();
            let out = self.book.unsettled().saturating_sub(held);
            // Entries are worked off as they are handed over, but the later ones of a chain, and notifications, need the
            // kernel's deferred work, which is done while waiting. Each entry has one result at least, so never more is
            // waited for than comes.
            let (count, want) = match (out, self.book.batch()) {
                // If the kernel took only the first part of the batch (it had no memory for more) the rest goes after
                // that part's results: the entries of a chain are no longer linked to it.
                (1.., _) => (0, out),
                // And not at all behind one of a chain that failed.
                (0, (_, true)) => {
                    self.renew();
                    return Ok(());
                }
                (0, _) => (held, if held > 1 { held } else { 0 }),
            };
            #[cfg(test)]
            let (count, want) = (count.min(self.hand_over_at_most), want.min(self.hand_over_at_most));
            self.calls += 1;
            match ring.enter_with(count, want, Some(PATIENCE)) {
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
                    self.fail(&e);
                    return Err(no_ring());
                }
            }
            self.drain();
        }
        Ok(())
    }

    /// Reads the completions that are there. A system call is made only when the kernel says that it has more.
    pub(super) fn reap(&mut self) {
        self.follow();
        if let Some(watch) = &self.watch
            && self.is_own_thread()
        {
            // Before the reading, so that what comes meanwhile sets it again.
            watch.clear();
        }
        self.drain();
        self.look_after_retired();
        while self.is_own_thread()
            && let Some(ring) = &mut self.ring
            && ring.has_deferred()
        {
            self.overflows += u64::from(ring.has_overflowed());
            self.calls += 1;
            match ring.enter(0, None) {
                Err(e) if !matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => self.fail(&e),
                _ => {}
            }
            if self.drain() == 0 {
                break;
            }
        }
    }

    /// Waits for a completion, at most `timeout`, and reads what is there.
    pub(super) fn wait(&mut self, timeout: Duration) {
        self.follow();
        let is_own_thread = self.is_own_thread();
        let Some(ring) = self.ring.as_mut().filter(|_| is_own_thread && self.retired.is_empty()) else {
            std::thread::sleep(timeout.min(BLIND_PAUSE));
            return;
        };
        self.calls += 1;
        match ring.enter(1, Some(timeout)) {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => self.fail(&e),
            _ => {}
        }
        self.drain();
    }

    /// Whether a whole wait may be spent in [`Core::wait`]: no other thread needs the core meanwhile.
    pub(super) fn waits_alone(&self) -> bool {
        self.owner.is_some() || self.may_move
    }

    /// The ring can't be driven any more. Notifications may have been lost, too (EBADR), so it is closed.
    #[cold]
    fn fail(&mut self, e: &io::Error) {
        self.drain();
        self.give_up(format!("io_uring_enter failed: {e}"));
    }

    /// Closes the ring for good. What is lent comes back when the kernel has freed the ring: then the channels are told.
    pub(super) fn give_up(&mut self, why: String) {
        let Some(mut ring) = self.ring.take() else { return };
        let handed_over = self.book.batch().0.saturating_sub(ring.held());
        drop(ring);
        tracing::warn!("{why}: the ring is closed");
        self.closed = Some(why);
        self.bury();
        self.book.give_up(handed_over);
    }

    /// Puts another ring in the place of one whose batch can't go on.
    #[cold]
    fn renew(&mut self) {
        let threads = if self.owner.is_some() { Threads::One } else { Threads::Any };
        match set_up(&self.options, threads) {
            Ok((ring, stone)) => self.replace(ring, stone),
            Err(e) => self.give_up(format!("no memory for a batch, nor another ring: {e}")),
        }
    }

    fn replace(&mut self, mut ring: SendRing, stone: Tombstone) {
        let held = self.ring.as_mut().map_or(0, SendRing::held);
        self.flags = ring.flags();
        self.areas.register_again(&ring);
        self.file = self.file.filter(|socket| ring.register_file(SOCKET_PLACE, *socket).is_ok());
        if let Some(watch) = &self.watch
            && let Err(e) = ring.signal(&watch.event)
        {
            tracing::warn!("the engine's new ring can't be waited for: {e}");
        }
        self.submissions = ring.submissions();
        // The old ring goes here.
        self.ring = Some(ring);
        self.bury();
        self.stone = Some(stone);
        self.book.give_up(self.book.batch().0.saturating_sub(held));
    }

    /// The stone of the ring that was just closed.
    fn bury(&mut self) {
        if let Some(stone) = self.stone.take() {
            if let Some(watch) = &self.watch {
                // Without it a program that waits for the engine hears of these loans when it polls its senders.
                let _ = stone.watch(&watch.all);
            }
            self.retired.push(stone);
        }
    }

    /// A sender's own ring is for one thread, which is cheaper. When the sender moves, another ring takes its place, for
    /// any thread this time. What the first one lent comes back when the kernel has freed it.
    fn follow(&mut self) {
        if !self.may_move || self.users == 0 || self.ring.is_none() || self.is_own_thread() {
            return;
        }
        self.drain();
        if let Ok((ring, stone)) = set_up(&self.options, Threads::Any) {
            self.owner = None;
            self.replace(ring, stone);
            self.look_after_retired();
        }
    }

    /// Tells of the loans of rings that were closed, once the kernel has freed them all. Whether they were copied is not
    /// known; they count as copied. Not between handing a batch over and taking its results.
    fn look_after_retired(&mut self) {
        if !self.retired.is_empty() && self.retired.iter().all(Tombstone::is_gone) {
            self.retired.clear();
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

/// What an event loop sleeps on.
struct Watch {
    /// An epoll instance with the event and the stones of closed rings in it.
    all: Arc<OwnedFd>,
    /// Signalled by the ring.
    event: OwnedFd,
}

impl Watch {
    fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&all, &event, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { all: Arc::new(all), event })
    }

    /// An error (a counter that is full) leaves it readable, as it should be.
    fn set(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8][..]);
    }
}

/// The ring was closed for good.
fn no_ring() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADFD)
}

/// A number that no other thread of this process has or had. (An address would come back with another thread; the
/// standard library's id costs more than the rest of a look.)
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    // Not while the thread's own variables are being dropped: then it is none that ever made a ring.
    NUMBER.try_with(|n| *n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::backend::UringBackend;
    use super::super::engine::{Engine, lock};
    use super::*;
    use crate::send::backend::Submit;
    use crate::send::kind::SocketKind;
    use crate::send::{Payload, Way, Window};
    use std::net::UdpSocket;
    use std::time::Instant;

    /// The kernel takes two entries of a chain, and has no memory for the rest.
    #[test]
    fn a_chain_that_is_taken_in_parts_keeps_its_order_and_ends_at_the_first_error() {
        let engine = Engine::new(&EngineOptions::default(), &[]).expect("io_uring is needed for this test");
        let (a, b) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        a.connect(b.local_addr().unwrap()).unwrap();
        b.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let kind = SocketKind::of(&a).unwrap();
        let mut back = UringBackend::on(&engine, a.into(), kind, true);
        let payloads = |lens: &[usize]| -> Vec<Payload> {
            lens.iter().zip(0..).map(|(n, i)| Payload::from(vec![i; *n])).collect()
        };
        let mut window = Window::default();
        let mut sent = Vec::new();
        for (lens, taken, rings) in
            [(&[300; 5][..], 5, 0), (&[300, 70_000, 300, 300][..], 1, 1), (&[300; 3][..], 3, 1)]
        {
            lock(engine.core()).hand_over_at_most = 2;
            sent.clear();
            let batch = payloads(lens);
            back.submit_many(&batch, Way::Lend, &mut sent).unwrap();
            assert_eq!(sent.len(), taken, "{lens:?}");
            assert!(lock(engine.core()).retired.len() <= rings, "{lens:?}");
            for (s, p) in sent.iter().zip(batch) {
                window.lend(p, s.id.expect("lent"), false).unwrap();
            }
            let mut got = [0; 400];
            for i in 0..taken {
                assert_eq!((b.recv(&mut got).unwrap(), got[0]), (300, i as u8), "{lens:?}");
            }
        }
        b.set_nonblocking(true).unwrap();
        assert!(b.recv(&mut [0; 400]).is_err(), "what lies behind an error was sent");
        // Also those of the closed ring, the failed entry's notification among them.
        let end = Instant::now() + Duration::from_secs(20);
        while window.outstanding() > 0 || engine.outstanding() > 0 {
            back.wait(false, Duration::from_millis(10)).unwrap();
            back.reap(&mut window).unwrap();
            assert!(Instant::now() < end, "{window:?}, {} of the engine", engine.outstanding());
        }
    }
}
