//! Credit: who may send how much (virtio 1.3 §5.10.6.3).
//!
//! All counts are free-running and wrap around, as the header's fields do.

mod from_guest;
mod socket;
mod to_guest;
mod windows;

pub use from_guest::FromGuest;
pub use socket::{SOCKET_BYTES, SocketCredit};
pub use to_guest::{BeyondSent, Credit, ToGuest};
pub use windows::{Releases, WindowCredit};

/// Why a guest's credit is reviewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Something came from the guest, or left for the host program.
    Routine,
    /// The guest asks: it wants to know of little, too.
    GuestAsks,
    /// A message that is not complete takes room until its end comes. The guest may need all the
    /// rest for it.
    PartWaits,
    /// Nothing has happened for a while.
    Idle,
}

/// What a review of a guest's credit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditReview {
    /// True: CREDIT_UPDATE is due.
    pub due: bool,
    /// True: there is credit that the guest does not know of, and nobody will say when there is
    /// more. It is reviewed again once nothing has happened for a while.
    pub quiet: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_wrap_around() {
        let mut c = FromGuest::new(1000);
        let mut o = ToGuest::default();
        o.update(1000, 0).expect("sound");
        let mut total = 0u32;
        for _ in 0..10_000_000 / 1000 {
            for _ in 0..1000 {
                assert!(c.receive(700));
                c.forward(700);
                o.send(700, 1, true);
                total = total.wrapping_add(700);
                o.update(1000, total).expect("sound");
            }
        }
        assert_eq!((c.tell().1, o.free()), (total, 1000));
    }
}
