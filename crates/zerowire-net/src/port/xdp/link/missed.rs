//! Frames that the kernel, or the program on the interface, dropped before anybody here saw them.

use zerowire::ledger::{Counters, DropReason};
use zerowire_sys::xdp::{Socket, Statistics};

/// What was dropped, and what of it is counted. The sources are read once a second while frames
/// pass, and when the socket is closed.
#[derive(Debug, Default)]
pub struct Missed {
    /// What the socket had dropped at the last look, and the program of its queue's frames.
    by_socket: u64,
    by_program: u64,
    /// Not counted yet: for want of a buffer, and longer than the port takes.
    no_room: u64,
    too_long: u64,
}

impl Missed {
    /// The queue's frames come to a socket from now on. What the program dropped before was another
    /// one's.
    pub(super) fn begin(&mut self, by_program: u64) {
        self.by_program = by_program;
    }

    /// Asks the socket. `by_program` is what the program of its queue's frames has dropped; None
    /// where its map can't be read.
    #[cold]
    pub(super) fn ask(&mut self, socket: &Socket, by_program: Option<u64>) {
        let Ok(statistics) = socket.statistics() else { return };
        self.look(&statistics, by_program);
    }

    /// What is known now.
    fn look(&mut self, socket: &Statistics, by_program: Option<u64>) {
        let by_socket = socket.receive_dropped + socket.receive_full;
        self.no_room += by_socket.saturating_sub(self.by_socket);
        self.by_socket = by_socket;
        if let Some(now) = by_program {
            self.too_long += now.saturating_sub(self.by_program);
            self.by_program = now;
        }
    }

    /// The socket goes; the next one counts from 0.
    pub(super) fn end(&mut self) {
        self.by_socket = 0;
    }

    /// Counts what was not counted yet, as far as it is known.
    #[inline]
    pub(in crate::port::xdp) fn count(&mut self, counters: &Counters) {
        if self.no_room + self.too_long > 0 {
            counters.dropped_many(DropReason::NoRoom, std::mem::take(&mut self.no_room));
            counters.dropped_many(DropReason::TooLong, std::mem::take(&mut self.too_long));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(receive_dropped: u64, receive_full: u64) -> Statistics {
        Statistics { receive_dropped, receive_full, ..Statistics::default() }
    }

    #[test]
    fn each_frame_is_counted_once_whichever_socket_dropped_it() {
        let (mut missed, counters) = (Missed::default(), Counters::default());
        missed.begin(7);
        missed.look(&socket(2, 1), Some(7));
        missed.look(&socket(2, 1), None);
        missed.count(&counters);
        missed.count(&counters);
        assert_eq!(counters.snapshot().dropped_frames, [("no_room", 3)].into());
        missed.look(&socket(4, 1), Some(9));
        missed.end();
        // Another socket, and another program on an interface that is made anew.
        missed.begin(0);
        missed.look(&socket(1, 0), Some(4));
        missed.count(&counters);
        assert_eq!(counters.snapshot().dropped_frames, [("no_room", 6), ("too_long", 6)].into());
    }
}
