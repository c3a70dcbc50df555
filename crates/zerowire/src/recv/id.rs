//! The names that a receiver gives out: a place, and a number that is never given out twice.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name {
            pub(super) place: u32,
            pub(super) generation: u32,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{}", self.place, self.generation)
            }
        }

        impl From<$name> for u64 {
            fn from(id: $name) -> Self {
                u64::from(id.generation) << 32 | u64::from(id.place)
            }
        }

        /// Back from the number that was made of it. A wrong number is refused where it is used.
        impl From<u64> for $name {
            fn from(number: u64) -> Self {
                Self { place: number as u32, generation: (number >> 32) as u32 }
            }
        }
    };
}

id! {
    /// A connection of a receiver. Never given out twice by the same receiver.
    ConnectionId
}

id! {
    /// A listening socket of a receiver. Never given out twice by the same receiver.
    ListenerId
}
