//! What senders left behind: memory that the kernel still reads when its sender is gone.
//!
//! A process-wide list keeps such a sender's socket and payloads. It is swept when a sender is
//! made, closed or dropped, and by [`orphans`]. Memory on the list is neither freed nor reused
//! before the kernel has let go of it.

use super::Window;
use super::backend::AnyBackend;
use super::socket::SocketBackend;
use std::sync::Mutex;

use zerowire_sys::lock;

/// What is left of a sender: never dropped while the kernel holds something.
pub(super) struct Orphan {
    pub back: AnyBackend,
    pub window: Window,
}

/// The list, and what a thread has taken off it to sweep it: that is still held as far as anybody
/// knows.
struct List {
    here: Vec<Orphan>,
    away: Orphans,
}

static LIST: Mutex<List> =
    Mutex::new(List { here: Vec::new(), away: Orphans { senders: 0, payloads: 0, bytes: 0 } });

/// What is on the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Senders that are gone.
    pub senders: usize,
    /// Payloads that the kernel still holds.
    pub payloads: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Orphan {
    /// Payloads that the kernel still holds, and their bytes.
    pub fn holds(&self) -> (usize, usize) {
        let (payloads, bytes) = self.back.elders_hold();
        (payloads + self.window.outstanding(), bytes + self.window.outstanding_bytes())
    }
}

impl Orphans {
    fn of(list: &[Orphan]) -> Self {
        let held = list.iter().map(Orphan::holds);
        held.map(|(payloads, bytes)| Self { senders: 1, payloads, bytes }).fold(Self::default(), Self::plus)
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, usize::saturating_add)
    }

    fn with(self, other: Self, op: fn(usize, usize) -> usize) -> Self {
        Self {
            senders: op(self.senders, other.senders),
            payloads: op(self.payloads, other.payloads),
            bytes: op(self.bytes, other.bytes),
        }
    }
}

/// The list while it is swept. It goes back whatever happens: a program's `on_done` or a payload's
/// drop code may panic.
struct Sweep {
    list: Vec<Orphan>,
    taken: Orphans,
}

impl Drop for Sweep {
    fn drop(&mut self) {
        let mut all = lock(&LIST);
        all.away = all.away.with(self.taken, usize::saturating_sub);
        all.here.append(&mut self.list);
    }
}

/// Sweeps the list of memory that outlived its sender, and says what is left on it. What another
/// thread is sweeping at the moment counts as left.
pub fn orphans() -> Orphans {
    let mut sweep = {
        let mut all = lock(&LIST);
        if all.here.is_empty() {
            return all.away;
        }
        let list = std::mem::take(&mut all.here);
        let taken = Orphans::of(&list);
        all.away = all.away.plus(taken);
        Sweep { list, taken }
    };
    // Payloads are dropped without the lock: their owners' drop code may end another sender.
    for o in &mut sweep.list {
        // An error says something of the connection, which is gone anyway; notifications were taken
        // all the same.
        let _ = o.back.reap(&mut o.window);
        let _ = o.back.recover(&mut o.window);
    }
    let over: Vec<Orphan> = sweep.list.extract_if(.., |o| o.holds().0 == 0).collect();
    drop(sweep);
    for o in over {
        o.back.into_socket();
    }
    let all = lock(&LIST);
    Orphans::of(&all.here).plus(all.away)
}

/// Takes what a sender left that lent on the socket with this cookie off the list, for the next
/// sender there.
pub(super) fn take_over(cookie: u64) -> Option<(SocketBackend, Window)> {
    let mut all = lock(&LIST);
    let is_it = |o: &Orphan| matches!(&o.back, AnyBackend::Socket(b) if b.has_cookie(cookie));
    let at = all.here.iter().position(is_it)?;
    let Orphan { back: AnyBackend::Socket(back), window } = all.here.swap_remove(at) else { return None };
    Some((back, window))
}

/// Puts what is left of a sender on the list.
pub(super) fn adopt(orphan: Orphan) {
    lock(&LIST).here.push(orphan);
}

#[cfg(test)]
mod tests;
