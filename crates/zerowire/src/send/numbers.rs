//! Who lends on which socket, and the number that its next lent call gets.
//!
//! The kernel numbers the calls with MSG_ZEROCOPY. The number belongs to the open socket
//! (`sk_zckey`), not to one of its descriptors and not to a sender. A sender on a duplicate counts
//! on where the one before it ended. A sender that began at 0 would take the notification of an
//! earlier payload for that of a later one.
//!
//! This table says, by the socket's cookie (SO_COOKIE, never used twice), where to begin. A sender
//! claims the socket before it lends. While it lives no other sender of this process lends there.
//! At its end it enters the next number.
//!
//! | the socket | the first number |
//! | --- | --- |
//! | was never seen, SO_ZEROCOPY is off | 0 |
//! | had a sender that has ended, SO_ZEROCOPY is off | what that one entered |
//! | SO_ZEROCOPY is on: inherited from a listener, or somebody else may have lent | unknown |
//! | was forgotten | unknown |
//!
//! A sender turns SO_ZEROCOPY off at its end if it was off before, so that "on" tells of others. An
//! unknown number is learned: one call lends alone, and its notification names it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use zerowire_sys::lock;

/// The most sockets that are remembered without a sender.
const MOST: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketUse {
    /// A sender lends on it.
    Lender,
    /// None does; the number of the next lent call, if it is known.
    Free(Option<u32>),
}

#[derive(Debug)]
struct NumberTable {
    sockets: BTreeMap<u64, SocketUse>,
    /// A socket that is not in the table was never seen if its cookie is larger than this.
    forgotten: u64,
}

static TABLE: Mutex<NumberTable> = Mutex::new(NumberTable::new());

impl NumberTable {
    const fn new() -> Self {
        Self { sockets: BTreeMap::new(), forgotten: 0 }
    }

    /// `None`: a sender lends on it. Otherwise the first number, if it is known.
    fn claim(&mut self, cookie: u64) -> Option<Option<u32>> {
        match self.sockets.insert(cookie, SocketUse::Lender) {
            Some(SocketUse::Lender) => None,
            Some(SocketUse::Free(next)) => Some(next),
            None => Some((cookie > self.forgotten).then_some(0)),
        }
    }

    fn release(&mut self, cookie: u64, next: Option<u32>, most: usize) {
        if next == Some(0) && cookie > self.forgotten {
            // Nothing was lent: the same as if it had never been seen.
            self.sockets.remove(&cookie);
            return;
        }
        self.sockets.insert(cookie, SocketUse::Free(next));
        if self.sockets.len() > most {
            let forgotten = &mut self.forgotten;
            self.sockets.retain(|cookie, entry| {
                let stays = *entry == SocketUse::Lender;
                if !stays {
                    *forgotten = (*forgotten).max(*cookie);
                }
                stays
            });
        }
    }
}

/// The right to lend on a socket; only one sender of the process has it at a time.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) cookie: u64,
    next: Option<u32>,
}

impl Claim {
    /// Claims the socket with this cookie, and says which number its first lent call gets, if that
    /// is known. `None`: another sender lends on it.
    pub(super) fn take(cookie: u64) -> Option<(Self, Option<u32>)> {
        let first = lock(&TABLE).claim(cookie)?;
        Some((Self { cookie, next: None }, first))
    }

    /// Gives it up. `next`: the number of the next lent call, if it is known. (A claim that is
    /// dropped enters none.)
    pub(super) fn release(mut self, next: Option<u32>) {
        self.next = next;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&TABLE).release(self.cookie, self.next, MOST);
    }
}

#[cfg(test)]
mod tests;
