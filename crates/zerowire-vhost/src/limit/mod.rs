//! Limits of what a VM moves in one direction: bytes and operations, by token buckets.
//!
//! ```text
//!             what may pass              what has passed
//!  Limiter ─────────▶ LimitPace ──▶ Meter ──▶ LimitPace ─────────▶ Limiter
//!  a VM's direction   a thread's    a turn
//!                     ring
//! ```
//! A thread asks once a turn ([`LimitPace::begin`]), counts what passes ([`Meter`]), and says it
//! behind the turn ([`LimitPace::passed`]). What may not pass stays where it is: in the guest's
//! ring, or in the queue of the port. Nothing is dropped. The thread sleeps until there are tokens
//! for a batch ([`LimitPace::nap`]).
//!
//! **Short turns.** A clock and a lock for each frame would cost more than the frame's own count.
//! So an answer of the limiter holds for up to 32 turns of a ring. It also ends when much has
//! passed, when nothing is left, with a change of the limit, and when the thread is about to sleep
//! or the ring stops. What has passed is taken from the buckets then. No token is made by that, and
//! none is lost unless a bucket is full by then.
//!
//! **Who owns what.** All threads that serve a VM's direction share its [`Limiter`]. Each ring has
//! a [`LimitPace`]. A lock is taken at most twice a turn while there is a limit, and never without
//! one.

mod bucket;
mod pace;
mod spec;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use bucket::{BucketSpec, MAX_TOKENS, TokenBucket};
pub use pace::LimitPace;
pub use spec::{BadLimit, Limit};
use zerowire_sys::lock;

/// What passes before the limiter hears of it: what a bucket holds at most, divided by this.
const UNPAID_PART: u64 = 64;

/// What may pass in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Operations.
    pub operations: u64,
    /// Bytes. The last operation may go beyond them.
    pub bytes: u64,
    /// Bytes of a turn at most, where they are known only behind it: more would be a debt that is
    /// longer than a full bucket.
    pub most_bytes: u64,
}

impl Allowance {
    /// Everything.
    pub const ALL: Self = Self { operations: u64::MAX, bytes: u64::MAX, most_bytes: u64::MAX };
    /// Nothing.
    pub const NONE: Self = Self { operations: 0, bytes: 0, most_bytes: 0 };

    /// Whether nothing may pass.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.operations == 0 || self.bytes == 0
    }

    /// How many operations may pass whose lengths are not known, such as frames that are yet to be
    /// read. They have `likely` bytes each, and `longest` at most.
    pub fn blind(&self, likely: u64, longest: u64) -> usize {
        if self.is_none() {
            return 0;
        }
        let by_bytes = (self.bytes / likely.max(1)).min(self.most_bytes / longest.max(1)).max(1);
        usize::try_from(by_bytes.min(self.operations)).unwrap_or(usize::MAX)
    }
}

/// An answer of a limiter.
#[derive(Clone, Copy, Debug)]
struct Grant {
    /// What is left of it.
    allowed: Allowance,
    /// Operations and bytes that may pass before the limiter hears of it. Each ring of the VM can
    /// lengthen a burst by this.
    most_unpaid: (u64, u64),
}

impl Grant {
    /// Operations and bytes have passed, which `unpaid` has as well. Whether more may pass before
    /// the limiter hears of it.
    #[inline]
    fn holds_behind(&mut self, operations: u64, bytes: u64, unpaid: &Unpaid) -> bool {
        let allowed = &mut self.allowed;
        allowed.operations = allowed.operations.saturating_sub(operations);
        allowed.bytes = allowed.bytes.saturating_sub(bytes);
        allowed.most_bytes = allowed.most_bytes.saturating_sub(bytes);
        let (most_operations, most_bytes) = self.most_unpaid;
        !allowed.is_none() && unpaid.operations < most_operations && unpaid.bytes < most_bytes
    }
}

/// What has passed, and was not taken from the buckets yet.
#[derive(Debug, Default)]
struct Unpaid {
    /// The buckets that pay for it. Those of another limit have nothing to do with it.
    epoch: u64,
    operations: u64,
    bytes: u64,
}

impl Unpaid {
    fn is_any(&self) -> bool {
        self.operations > 0 || self.bytes > 0
    }

    #[inline]
    fn add(&mut self, operations: u64, bytes: u64) {
        self.operations = self.operations.saturating_add(operations);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Counts what passes in a turn, and says when that is enough.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    allowed: Allowance,
    operations: u64,
    bytes: u64,
    /// True: something was left behind for lack of tokens.
    cut: bool,
}

impl Meter {
    /// Nothing has passed.
    pub const fn new(allowed: Allowance) -> Self {
        Self { allowed, operations: 0, bytes: 0, cut: false }
    }

    /// Whether the next operation may pass.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.operations < self.allowed.operations && self.bytes < self.allowed.bytes
    }

    /// Of `available` operations those that may be looked at now: none if the limit is reached.
    #[inline]
    pub fn admitted(&mut self, available: u16) -> u16 {
        if available == 0 || self.has_room() {
            return available;
        }
        self.cut();
        0
    }

    /// Bytes that may pass.
    #[inline]
    pub fn bytes_left(&self) -> u64 {
        self.allowed.bytes.saturating_sub(self.bytes)
    }

    /// An operation passes.
    #[inline]
    pub fn pass(&mut self, bytes: usize) {
        self.operations = self.operations.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes as u64);
    }

    /// One that was counted did not pass after all.
    pub fn take_back(&mut self, bytes: usize) {
        self.operations = self.operations.wrapping_sub(1);
        self.bytes = self.bytes.wrapping_sub(bytes as u64);
    }

    /// Something is left behind for lack of tokens.
    #[inline]
    pub fn cut(&mut self) {
        self.cut = true;
    }

    /// Whether something was left behind.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Operations and bytes that have passed.
    pub fn passed(&self) -> (u64, u64) {
        (self.operations, self.bytes)
    }
}

impl Default for Meter {
    /// Everything may pass.
    fn default() -> Self {
        Self::new(Allowance::ALL)
    }
}

/// The buckets of a direction.
#[derive(Debug)]
struct Buckets {
    limit: Limit,
    /// Different from that of all buckets before, and not 0.
    epoch: u64,
    bytes: Option<TokenBucket>,
    operations: Option<TokenBucket>,
}

impl Buckets {
    fn new(limit: Limit, epoch: u64, now: Instant) -> Self {
        let bucket = |spec: Option<BucketSpec>| spec.map(|spec| TokenBucket::new(spec, now));
        Self { limit, epoch, bytes: bucket(limit.bytes()), operations: bucket(limit.operations()) }
    }

    fn refill(&mut self, now: Instant) {
        [&mut self.bytes, &mut self.operations].into_iter().flatten().for_each(|bucket| bucket.refill(now));
    }

    /// Tokens that have come by now, and then those of what has passed. The other way round a
    /// bucket that was full would get tokens for the time before something passed.
    fn settle(&mut self, unpaid: &mut Unpaid, now: Instant) {
        self.refill(now);
        let passed = std::mem::replace(unpaid, Unpaid { epoch: self.epoch, ..Unpaid::default() });
        if passed.epoch != self.epoch {
            return;
        }
        if let Some(bucket) = &mut self.operations {
            bucket.take(passed.operations);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(passed.bytes);
        }
    }

    fn grant(&self) -> Grant {
        let tokens = |bucket: &Option<TokenBucket>| bucket.as_ref().map_or(u64::MAX, TokenBucket::tokens);
        let part =
            |bucket: &Option<TokenBucket>| bucket.as_ref().map_or(u64::MAX, |b| b.size() / UNPAID_PART);
        let bytes = tokens(&self.bytes);
        let size = self.bytes.as_ref().map_or(0, TokenBucket::size);
        let most_bytes = bytes.saturating_add(size);
        let allowed = Allowance { operations: tokens(&self.operations), bytes, most_bytes };
        Grant { allowed, most_unpaid: (part(&self.operations), part(&self.bytes)) }
    }

    /// How long nothing may pass.
    fn wait(&self) -> Duration {
        let waits = [&self.bytes, &self.operations].into_iter().flatten().map(TokenBucket::wait);
        waits.max().unwrap_or_default()
    }
}

/// What one direction of a VM may move. Threads that serve it share this.
#[derive(Debug, Default)]
pub struct Limiter {
    /// True: there is a limit.
    on: AtomicBool,
    /// Changes of the limit.
    epochs: AtomicU64,
    buckets: Mutex<Option<Buckets>>,
    waits: AtomicU64,
    waited_nanos: AtomicU64,
}

/// The limits of a VM; None where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Of what comes from the guest.
    pub transmit: Option<Limit>,
    /// Of what goes to the guest.
    pub receive: Option<Limit>,
}

/// The same as all threads that serve the VM share them.
#[derive(Debug, Default)]
pub struct Limiters {
    /// From the guest.
    pub transmit: Limiter,
    /// To the guest.
    pub receive: Limiter,
}

impl Limiters {
    /// Replaces the limits. One that stays the same keeps its tokens.
    pub fn set(&self, limits: Limits) {
        self.transmit.set(limits.transmit);
        self.receive.set(limits.receive);
    }
}

/// How a direction was held up by its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LimitStats {
    /// How often it waited.
    pub waits: u64,
    /// How long, the sum over its queues.
    pub waited: Duration,
}

impl Limiter {
    /// With full buckets.
    pub fn new(limit: Option<Limit>) -> Self {
        let limiter = Self::default();
        limiter.set(limit);
        limiter
    }

    /// Replaces the limit. Buckets of another limit are full; those of the same one stay as they
    /// are.
    pub fn set(&self, limit: Option<Limit>) {
        let mut buckets = lock(&self.buckets);
        if buckets.as_ref().map(|b| b.limit) != limit {
            let epoch = self.epochs.fetch_add(1, Ordering::Release) + 1;
            *buckets = limit.map(|limit| Buckets::new(limit, epoch, Instant::now()));
            self.on.store(limit.is_some(), Ordering::Release);
        }
    }

    /// Whether there is a limit.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// How its direction was held up.
    pub fn stats(&self) -> LimitStats {
        LimitStats {
            waits: self.waits.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited_nanos.load(Ordering::Relaxed)),
        }
    }

    /// That of the present limit, or of none.
    #[inline]
    fn epoch(&self) -> u64 {
        self.epochs.load(Ordering::Acquire)
    }

    /// What may pass now, or how long nothing may. Takes what has passed since the last question.
    fn ask(&self, unpaid: &mut Unpaid, now: Instant) -> Result<Grant, Duration> {
        let mut buckets = lock(&self.buckets);
        let Some(buckets) = buckets.as_mut() else {
            return Ok(Grant { allowed: Allowance::ALL, most_unpaid: (0, 0) });
        };
        buckets.settle(unpaid, now);
        match buckets.wait() {
            Duration::ZERO => Ok(buckets.grant()),
            wait => Err(wait),
        }
    }

    /// Takes what has passed. Returns how long nothing more may.
    fn take(&self, unpaid: &mut Unpaid, now: Instant) -> Duration {
        let mut buckets = lock(&self.buckets);
        let Some(buckets) = buckets.as_mut() else { return Duration::ZERO };
        buckets.settle(unpaid, now);
        buckets.wait()
    }

    fn waited(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}
