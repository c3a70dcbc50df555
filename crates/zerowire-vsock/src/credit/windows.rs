//! The windows of a mapped connection, as credit for the guest that sends to it.

use super::{CreditReview, FromGuest, Why};

/// What windows say of bytes that were copied into them.
pub trait Releases {
    /// Bytes of windows that came back since the last call.
    fn take_released(&mut self) -> u32;
    /// Whether a window is published and not back.
    fn is_any_out(&self) -> bool;
    /// Asks the program to tell when `bytes` are back, or all that are out. Returns true if
    /// they are by now.
    fn wait_for_bytes(&mut self, bytes: u32) -> bool;
}

/// What the windows of one connection took of a guest's bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowCredit {
    /// Bytes that were copied into windows, and for which the guest has no credit again.
    pub uncredited: u32,
    /// True: the program keeps windows while it waits. The guest hears of any room.
    tells_any: bool,
}

impl WindowCredit {
    /// The windows took `n` bytes.
    pub fn took(&mut self, n: usize) {
        self.uncredited = self.uncredited.saturating_add(n as u32);
    }

    /// Gives the guest credit for what the program has given back. Without windows, because the
    /// program has left, that is all.
    pub fn review<R: Releases>(
        &mut self,
        incoming: &mut FromGuest,
        why: Why,
        mut windows: Option<&mut R>,
    ) -> CreditReview {
        let (mut due, mut told) = (incoming.is_news(), false);
        if self.uncredited > 0 && (why != Why::Routine || self.tells_any || incoming.lacks(self.uncredited)) {
            self.tells_any |= why == Why::Idle;
            loop {
                let left = if why == Why::PartWaits { 0 } else { self.left(windows.as_deref_mut()) };
                incoming.forward(std::mem::replace(&mut self.uncredited, left) - left);
                due = incoming.is_news() || (self.tells_any && incoming.untold() > 0);
                let any = why != Why::Routine;
                let waits = !due && (incoming.lacks(self.uncredited) || (any && self.uncredited > 0));
                // The program reports a window that comes back, if it was asked to.
                let wanted = if any || self.tells_any { 1 } else { incoming.short_of_news() };
                told = waits && self.tells_any;
                if !waits || !windows.as_mut().is_some_and(|w| w.wait_for_bytes(wanted)) {
                    break;
                }
            }
            self.tells_any &= !due;
        }
        incoming.reviewed(why, due, self.uncredited > 0 && !told)
    }

    /// Bytes that the program has not given back. What is in the window that is being filled counts
    /// as read if nothing else is out: the program can't do anything about it.
    fn left<R: Releases>(&self, windows: Option<&mut R>) -> u32 {
        let Some(windows) = windows else { return 0 };
        let back = windows.take_released();
        if windows.is_any_out() { self.uncredited.saturating_sub(back) } else { 0 }
    }
}

#[cfg(test)]
mod tests;
