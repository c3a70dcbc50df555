//! Frames that are in the kernel's hands on their way out, and what to do when they come back.
//!
//! Plain code. A loan is named by a number. The number travels with each of the frame's pieces as
//! the cookie of its address, and comes back with its completion. Numbers are given out in turn,
//! and a number that comes back and is not that of a loan is ignored.
//!
//! A chain that goes out as many frames is *held* by a loan of its own, which nothing in the ring
//! names. Each frame that lies in the chain's memory is a part of it. The chain is back when the
//! last part is and [`Loans::let_go`] was called.

use zerowire_sys::xdp::address::MAX_COOKIE;

use super::RING_ENTRIES;
use super::slab::SEND_PLACES;

const LOANS: usize = RING_ENTRIES as usize;

/// What comes back with a loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// A chain of the guest's.
    Chain(u16),
    /// A place of the slab; the chain went back when the frame was copied.
    Place(u16),
    /// One of the frames that a chain became: the number of the loan that holds the chain.
    Part(u16),
    /// The loan's own head in the slab, and nothing else.
    Head,
}

#[derive(Clone, Copy, Debug)]
struct Loan {
    number: u16,
    /// Pieces that have not come back; 0 for no loan.
    pieces: u16,
    lent: Lent,
}

/// All loans of a socket.
#[derive(Debug)]
pub struct Loans {
    loans: Box<[Loan]>,
    next: u16,
    /// Loans whose pieces are in the kernel's hands.
    out: usize,
    /// Loans that hold a chain whose frames are not all queued yet.
    held: usize,
    /// Chains that are lent.
    pub(super) chains: usize,
    /// Free places of the slab.
    pub(super) places: Vec<u16>,
}

impl Loans {
    /// No loans, all places free.
    pub fn new() -> Self {
        let empty = Loan { number: 0, pieces: 0, lent: Lent::Chain(0) };
        Self {
            loans: vec![empty; LOANS].into(),
            next: 0,
            out: 0,
            held: 0,
            chains: 0,
            places: (0..SEND_PLACES as u16).rev().collect(),
        }
    }

    /// Whether nothing is under way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.out == 0
    }

    /// The number that the next loan gets; None while all are out. One that never comes back is
    /// passed over.
    #[inline]
    pub fn next(&mut self) -> Option<u16> {
        if self.out + self.held >= LOANS {
            return None;
        }
        for _ in 0..LOANS {
            if self.loans[usize::from(self.next) % LOANS].pieces == 0 {
                return Some(self.next);
            }
            self.next = after(self.next);
        }
        None
    }

    /// A free place of the slab, which is the caller's until it is lent.
    #[inline]
    pub fn place(&mut self) -> Option<u16> {
        self.places.pop()
    }

    /// Lends as the number that [`Self::next`] gave, in `pieces` pieces, 1 or more.
    #[inline]
    pub fn lend(&mut self, lent: Lent, pieces: u16) {
        match lent {
            Lent::Chain(_) => self.chains += 1,
            Lent::Part(holder) => self.loans[usize::from(holder) % LOANS].pieces += 1,
            Lent::Place(_) | Lent::Head => {}
        }
        self.out += 1;
        self.start(lent, pieces.max(1));
    }

    /// Has the number that [`Self::next`] gave hold a chain, of which parts are lent then.
    pub fn hold(&mut self, head: u16) {
        self.chains += 1;
        self.held += 1;
        self.start(Lent::Chain(head), 1);
    }

    #[inline]
    fn start(&mut self, lent: Lent, pieces: u16) {
        let number = self.next;
        self.loans[usize::from(number) % LOANS] = Loan { number, pieces, lent };
        self.next = after(number);
    }

    /// Whether a chain is held by this number: not any more when the socket has gone.
    pub fn is_held(&self, holder: u16) -> bool {
        let loan = self.loans[usize::from(holder) % LOANS];
        loan.pieces > 0 && loan.number == holder
    }

    /// All parts of a chain that is held are lent. Returns the chain, if all of them are back.
    pub fn let_go(&mut self, holder: u16) -> Option<u16> {
        if !self.is_held(holder) {
            return None;
        }
        self.held -= 1;
        // Its parts count from now on.
        self.out += 1;
        self.back(holder)
    }

    /// A piece came back. Returns the chain that goes back to the guest, if this was the last piece
    /// of one.
    #[inline]
    pub fn back(&mut self, number: u16) -> Option<u16> {
        let loan = &mut self.loans[usize::from(number) % LOANS];
        if loan.pieces == 0 || loan.number != number {
            return None;
        }
        loan.pieces -= 1;
        if loan.pieces > 0 {
            return None;
        }
        self.out -= 1;
        match loan.lent {
            Lent::Chain(head) => {
                self.chains -= 1;
                Some(head)
            }
            Lent::Place(place) => {
                self.places.push(place);
                None
            }
            // No deeper than this: a part is never a holder.
            Lent::Part(holder) => self.back(holder),
            Lent::Head => None,
        }
    }

    /// The kernel has made its copy of a frame, and reads the guest's memory no more, though
    /// nothing of it has come back. Returns the chain that goes back to the guest, as
    /// [`Self::back`] does.
    #[inline]
    pub fn copied(&mut self, number: u16) -> Option<u16> {
        let loan = &mut self.loans[usize::from(number) % LOANS];
        if loan.pieces == 0 || loan.number != number {
            return None;
        }
        match loan.lent {
            Lent::Chain(head) => {
                loan.lent = Lent::Head;
                self.chains -= 1;
                Some(head)
            }
            Lent::Part(holder) => {
                loan.lent = Lent::Head;
                self.back(holder)
            }
            Lent::Place(_) | Lent::Head => None,
        }
    }

    /// Ends all loans: the socket is gone, and with it the kernel's hold on them. Gives each chain
    /// to `each`.
    pub fn end(&mut self, mut each: impl FnMut(u16)) {
        for loan in &mut self.loans {
            if std::mem::take(&mut loan.pieces) == 0 {
                continue;
            }
            match loan.lent {
                Lent::Chain(head) => each(head),
                Lent::Place(place) => self.places.push(place),
                Lent::Part(_) | Lent::Head => {}
            }
        }
        (self.out, self.held, self.chains) = (0, 0, 0);
    }
}

fn after(number: u16) -> u16 {
    if number >= MAX_COOKIE { 0 } else { number + 1 }
}

#[cfg(test)]
mod tests;
