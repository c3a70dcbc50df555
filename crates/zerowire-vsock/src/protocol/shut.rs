//! What the sides of a connection have ended: SHUTDOWN's two bits (virtio 1.3 §5.10.6.5).

use std::ops::{BitAnd, BitOr, BitOrAssign};

use crate::packet::{SHUT_BOTH, SHUT_RECEIVE, SHUT_SEND};

/// None, one or both of: it receives no more, it sends no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shut(u8);

impl Shut {
    /// It goes on.
    pub const NONE: Self = Self(0);
    /// It receives no more.
    pub const RECEIVE: Self = Self(SHUT_RECEIVE as u8);
    /// It sends no more.
    pub const SEND: Self = Self(SHUT_SEND as u8);
    /// It does neither.
    pub const BOTH: Self = Self(SHUT_BOTH as u8);

    /// What the flags of SHUTDOWN say; other bits mean nothing.
    pub fn of(flags: u32) -> Self {
        Self((flags & SHUT_BOTH) as u8)
    }

    /// As flags of SHUTDOWN.
    pub fn flags(self) -> u32 {
        u32::from(self.0)
    }

    /// Whether it sends no more.
    pub fn sends_no_more(self) -> bool {
        self & Self::SEND != Self::NONE
    }

    /// Whether it receives no more.
    pub fn receives_no_more(self) -> bool {
        self & Self::RECEIVE != Self::NONE
    }

    /// Whether it does neither.
    pub fn is_both(self) -> bool {
        self == Self::BOTH
    }
}

impl BitOr for Shut {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Shut {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl BitAnd for Shut {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What each side has ended, as far as the guest and its device know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SideEnds {
    /// By the guest.
    pub(super) guest: Shut,
    /// By the far side.
    pub(super) far: Shut,
    /// What the guest was told of `far`.
    pub(super) told: Shut,
}

impl SideEnds {
    /// What the guest hears now. That the far side receives no more is said at once, that
    /// it sends no more only behind its last byte.
    pub(super) fn news(&self, delivered: bool) -> Option<Shut> {
        let now = if delivered { self.far } else { self.far & Shut::RECEIVE };
        (self.told | now != self.told).then_some(self.told | now)
    }
}
