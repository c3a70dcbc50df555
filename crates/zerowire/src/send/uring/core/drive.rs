//! A batch goes out, results and notifications come in.

use super::super::book::Book;
use super::EngineState;
use std::io;
use std::time::Duration;
use zerowire_sys::uring::ring::{Cqe, SendRing};

/// Completions read at a time.
const CHUNK: usize = 32;
/// How long to wait for a result that doesn't come at once, before the next call. It only matters
/// if the kernel breaks its word.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks where nothing can be waited for.
const BLIND_PAUSE: Duration = Duration::from_millis(1);
/// Times the kernel may have no memory for requests before the ring is given up.
const MAX_REFUSALS: u32 = 10_000;

impl EngineState {
    /// Call this before entries are made and pushed. EEXIST: this is not the thread that may.
    /// EBADFD: the ring was closed for good.
    ///
    /// `is_chain`: the entries will be linked, so that one that fails cancels those behind it.
    pub(in crate::send::uring) fn begin(&mut self, is_chain: bool) -> io::Result<()> {
        self.follow();
        self.book.is_chain = is_chain;
        if self.ring.is_none() {
            return Err(no_ring());
        }
        if self.is_own_thread() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EEXIST)) }
    }

    /// The ring, for entries, and the book of them. EBADFD: the ring was closed for good.
    pub(in crate::send::uring) fn ring_and_book(&mut self) -> io::Result<(&mut SendRing, &mut Book)> {
        match &mut self.ring {
            Some(ring) => Ok((ring, &mut self.book)),
            None => Err(no_ring()),
        }
    }

    /// Hands the batch over and waits for the results, which are there at once. Then
    /// [`Book::take_batch`] gives them.
    ///
    /// # Errors
    /// EBADFD: the ring failed, and was closed. Then, too, the book knows what was taken.
    pub(in crate::send::uring) fn settle(&mut self) -> io::Result<()> {
        let mut refusals = 0;
        while self.book.unsettled > 0 {
            let Some(ring) = &mut self.ring else { return Err(no_ring()) };
            let held = ring.held();
            let out = self.book.unsettled.saturating_sub(held);
            // The kernel works entries off as they are handed over. But the later ones of a chain,
            // and notifications, need its deferred work, which it does while this waits. Each entry
            // has one result at least, so this never waits for more than comes.
            let (count, want) = match (out, self.book.batch()) {
                // If the kernel took only the first part of the batch, it had no memory for more.
                // The rest then goes after the results of the first part: the entries of a chain
                // are no longer linked to it.
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
            self.counts.calls += 1;
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

    /// Reads the completions that are there. A system call is made only when the kernel says that
    /// it has more.
    pub(in crate::send::uring) fn reap(&mut self) {
        self.follow();
        self.read_completions();
        if let Some(watch) = &self.watch
            && self.book.outstanding > 0
            && self.is_own_thread()
        {
            watch.clear();
            // What came in between; what comes later sets it again.
            self.read_completions();
        }
    }

    fn read_completions(&mut self) {
        self.drain();
        self.look_after_retired();
        while self.is_own_thread()
            && let Some(ring) = &mut self.ring
            && ring.has_deferred()
        {
            self.counts.overflows += u64::from(ring.has_overflowed());
            self.counts.calls += 1;
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
    pub(in crate::send::uring) fn wait(&mut self, timeout: Duration) {
        self.follow();
        let is_own_thread = self.is_own_thread();
        let Some(ring) = self.ring.as_mut().filter(|_| is_own_thread && self.retired.is_empty()) else {
            std::thread::sleep(timeout.min(BLIND_PAUSE));
            return;
        };
        self.counts.calls += 1;
        match ring.enter(1, Some(timeout)) {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => self.fail(&e),
            _ => {}
        }
        self.drain();
    }

    /// Whether a whole wait may be spent in [`EngineState::wait`]: no other thread needs the core
    /// meanwhile.
    pub(in crate::send::uring) fn waits_alone(&self) -> bool {
        self.rule.waits_alone()
    }

    pub(super) fn drain(&mut self) -> usize {
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

/// The ring was closed for good.
fn no_ring() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADFD)
}
