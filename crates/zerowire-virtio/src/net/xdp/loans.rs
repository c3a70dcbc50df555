//! Frames that are in the kernel's hands on their way out, and what to do when they come back.
//!
//! Plain code. A loan is named by a number that travels with each of the frame's pieces as the cookie of its address, and comes
//! back with its completion. Numbers are given out in turn, and a number that comes back and is not that of a loan is
//! ignored.

use zerowire::xdp::address::MAX_COOKIE;

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
    chains: usize,
    places: Vec<u16>,
}

impl Loans {
    /// No loans, all places free.
    pub fn new() -> Self {
        let empty = Loan { number: 0, pieces: 0, lent: Lent::Chain(0) };
        Self {
            loans: vec![empty; LOANS].into(),
            next: 0,
            chains: 0,
            places: (0..SEND_PLACES as u16).rev().collect(),
        }
    }

    /// Chains that are lent.
    #[inline]
    pub fn chains(&self) -> usize {
        self.chains
    }

    /// Whether nothing is under way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.chains == 0 && self.places.len() == SEND_PLACES
    }

    /// The number that the next loan gets; None while all are out. One that never comes back is passed over.
    #[inline]
    pub fn next(&mut self) -> Option<u16> {
        if self.chains + (SEND_PLACES - self.places.len()) >= LOANS {
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

    /// A free place of the slab, which is the caller's until it is lent or [put back](Self::put_back).
    #[inline]
    pub fn place(&mut self) -> Option<u16> {
        self.places.pop()
    }

    /// A place that was not lent after all.
    pub fn put_back(&mut self, place: u16) {
        self.places.push(place);
    }

    /// Lends as the number that [`Self::next`] gave, in `pieces` pieces, 1 or more.
    #[inline]
    pub fn lend(&mut self, lent: Lent, pieces: u16) {
        let number = self.next;
        self.chains += usize::from(matches!(lent, Lent::Chain(_)));
        self.loans[usize::from(number) % LOANS] = Loan { number, pieces: pieces.max(1), lent };
        self.next = after(number);
    }

    /// A piece came back. Returns the chain that is to be given back to the guest, if it was the last piece of one.
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
        match loan.lent {
            Lent::Chain(head) => {
                self.chains -= 1;
                Some(head)
            }
            Lent::Place(place) => {
                self.places.push(place);
                None
            }
        }
    }

    /// Ends all loans: the socket is gone, and with it the kernel's hold on them. Gives each chain to `each`.
    pub fn end(&mut self, mut each: impl FnMut(u16)) {
        for loan in &mut self.loans {
            if std::mem::take(&mut loan.pieces) == 0 {
                continue;
            }
            match loan.lent {
                Lent::Chain(head) => each(head),
                Lent::Place(place) => self.places.push(place),
            }
        }
        self.chains = 0;
    }
}

fn after(number: u16) -> u16 {
    if number >= MAX_COOKIE { 0 } else { number + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_comes_back_with_its_last_piece_in_any_order() {
        let mut l = Loans::new();
        let mut numbers = Vec::new();
        for (head, pieces) in [(7, 1), (8, 3), (9, 2)] {
            numbers.push(l.next().unwrap_or(u16::MAX));
            l.lend(Lent::Chain(head), pieces);
        }
        assert_eq!((l.chains(), &numbers[..]), (3, &[0, 1, 2][..]));
        assert_eq!([l.back(1), l.back(2), l.back(1), l.back(0)], [None, None, None, Some(7)]);
        assert_eq!([l.back(2), l.back(1)], [Some(9), Some(8)]);
        assert!(l.is_empty());
        // Once more, or never lent: ignored.
        assert_eq!([l.back(1), l.back(0), l.back(400), l.back(MAX_COOKIE)], [None; 4]);
    }

    #[test]
    fn places_are_free_again_and_bounded() {
        let mut l = Loans::new();
        for i in 0..SEND_PLACES {
            let place = l.place();
            assert!(place.is_some(), "{i}");
            l.lend(Lent::Place(place.unwrap_or_default()), 1);
        }
        assert_eq!((l.place(), l.chains(), l.is_empty()), (None, 0, false));
        assert_eq!(l.back(5), None);
        assert!(l.place().is_some_and(|p| l.place().is_none() && {
            l.put_back(p);
            true
        }));
    }

    #[test]
    fn one_that_never_comes_back_is_passed_over() {
        let mut l = Loans::new();
        l.lend(Lent::Chain(u16::MAX), 1);
        for i in 0..3 * LOANS as u16 {
            let number = l.next().unwrap_or(u16::MAX);
            assert_ne!(usize::from(number) % LOANS, 0, "{i}");
            l.lend(Lent::Chain(i), 1);
            assert_eq!(l.back(number), Some(i));
        }
        assert_eq!((l.chains(), l.back(0)), (1, Some(u16::MAX)));
    }

    #[test]
    fn numbers_wrap_and_never_name_two_loans() {
        let mut l = Loans::new();
        for i in 0..3 * u32::from(MAX_COOKIE) {
            let number = l.next().unwrap_or(u16::MAX);
            assert!(number <= MAX_COOKIE);
            l.lend(Lent::Chain(i as u16), 1);
            assert_eq!(l.back(number), Some(i as u16));
        }
        for _ in 0..LOANS {
            assert!(l.next().is_some());
            l.lend(Lent::Chain(1), 1);
        }
        assert_eq!(l.next(), None);
        let mut ended = 0;
        l.end(|head| ended += usize::from(head == 1));
        assert_eq!((ended, l.is_empty(), l.next().is_some()), (LOANS, true, true));
    }
}
