//! The ids of lent calls, and the numbers that the kernel gives them on one socket.
//!
//! Ids are the sender's own and have no gaps. The kernel's number is the id and a *shift*, once
//! that is known:
//!
//! ```text
//!              first notification           a call of several packets failed
//!   Unknown ─▶ Trial ───────────▶ Known ───────────────────────────────▶ Unknown
//!      one call lends alone         │
//!                                   └─ a number that nobody gave out ──▶ Foreign
//! ```
//!
//! Plain state without I/O.

/// What is known of the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// Not what the next call gets. The shift is that of the calls before.
    Unknown,
    /// One call, this id, is lent to learn the shift.
    Trial(u32),
    /// The shift is right for the next call, too.
    Known,
    /// Somebody else lends on the socket: the numbers mean nothing any more.
    Foreign,
}

/// A notification names numbers that are not of this socket's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForeignNumbers;

/// See the module.
#[derive(Debug)]
pub(super) struct Numbering {
    knowledge: Knowledge,
    /// The id of the next lent call.
    next_id: u32,
    /// The kernel's number is the id and this.
    shift: u32,
    /// Lent datagrams of one packet that failed since the queue was read.
    failed: u32,
}

impl Numbering {
    /// Nothing is known.
    pub(super) fn unknown() -> Self {
        Self { knowledge: Knowledge::Unknown, next_id: 0, shift: 0, failed: 0 }
    }

    /// The next call gets this number, and has it as its id.
    pub(super) fn known(next: u32) -> Self {
        Self { knowledge: Knowledge::Known, next_id: next, ..Self::unknown() }
    }

    /// The id of the next lent call.
    pub(super) fn next_id(&self) -> u32 {
        self.next_id
    }

    /// The kernel's number of the next lent call, if it is known.
    pub(super) fn next_number(&self) -> Option<u32> {
        self.is_known().then(|| self.next_id.wrapping_add(self.shift))
    }

    #[inline]
    pub(super) fn is_known(&self) -> bool {
        self.knowledge == Knowledge::Known
    }

    /// Whether one call may lend alone, to learn the shift.
    pub(super) fn may_try(&self) -> bool {
        self.knowledge == Knowledge::Unknown
    }

    /// The numbers don't tell the socket's notifications apart: any shift is right.
    pub(super) fn ignore_numbers(&mut self) {
        self.knowledge = Knowledge::Known;
    }

    /// A call was lent: its id.
    #[inline]
    pub(super) fn take_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        if let Knowledge::Unknown | Knowledge::Trial(_) = self.knowledge {
            self.knowledge = Knowledge::Trial(id);
        }
        id
    }

    /// A lent call of one packet failed. Its number may be used up.
    pub(super) fn one_failed(&mut self) {
        self.failed = self.failed.saturating_add(1);
    }

    /// A lent call of several packets failed: the shift behind it is unknown for a while.
    pub(super) fn several_failed(&mut self) {
        if self.knowledge != Knowledge::Foreign {
            self.knowledge = Knowledge::Unknown;
        }
    }

    /// The queue was read: what failed calls used up is known.
    pub(super) fn queue_was_read(&mut self) {
        self.failed = 0;
    }

    /// The call that was lent to learn the shift will have no notification.
    pub(super) fn end_trial(&mut self) {
        if let Knowledge::Trial(_) = self.knowledge {
            self.knowledge = Knowledge::Unknown;
        }
    }

    /// The ids of ours that a notification of the numbers `lo` to `hi` names.
    pub(super) fn ours(&mut self, lo: u32, hi: u32) -> Result<Option<(u32, u32)>, ForeignNumbers> {
        match self.knowledge {
            Knowledge::Foreign => return Ok(None),
            Knowledge::Trial(_) if lo != hi => return Err(self.found_foreign()),
            Knowledge::Trial(id) => {
                (self.shift, self.knowledge) = (lo.wrapping_sub(id), Knowledge::Known);
                return Ok(Some((id, id)));
            }
            Knowledge::Unknown | Knowledge::Known => {}
        }
        let (first, last) = (lo.wrapping_sub(self.shift), hi.wrapping_sub(self.shift));
        let next = self.next_id;
        let beyond = last.wrapping_sub(next).wrapping_add(1) as i32;
        if beyond <= 0 {
            return Ok(Some((first, last)));
        }
        // While the numbers are unknown those beyond are of the call that failed, or of somebody
        // who lent before.
        if self.is_known() {
            if beyond as u32 > self.failed {
                return Err(self.found_foreign());
            }
            self.failed -= beyond as u32;
            self.next_id = last.wrapping_add(1);
        }
        Ok((first.wrapping_sub(next) as i32 <= -1).then(|| (first, next.wrapping_sub(1))))
    }

    #[cold]
    fn found_foreign(&mut self) -> ForeignNumbers {
        self.knowledge = Knowledge::Foreign;
        ForeignNumbers
    }
}

#[cfg(test)]
mod tests;
