//! Chains in flight, remembered outside of this process (vhost-user, "Inflight I/O tracking").
//!
//! A back end that dies takes its knowledge of which chains it has with it. Where chains are used
//! in the order in which they became available the used index alone tells. Otherwise nothing in
//! guest memory does (payload lent to a program, frames that a driver sends when it likes). So the
//! front end keeps a piece of memory that both sides share. Each chain is marked there when it is
//! taken and unmarked when it is used.
//!
//! **Who owns these bytes.** The front end shares them, so they are hostile when a ring starts.
//! This side checks versions, indices and lists. Then it goes by its own copy and only writes. The
//! guest does not see them.
//!
//! **What a death leaves behind.** A process dies between two of its instructions, and what it has
//! stored until then stays. Hence only the compiler must keep these orders:
//! * A chain is marked, in one store, before anything is done with it. So the marked ones and the
//!   used ones are always the first of the available ring. Their number says where to take the next
//!   one.
//! * The used index is stored while all marks of its batch are still there. `used_idx` is stored
//!   after the last mark was taken away. A difference between the two says that the batch at
//!   `last_batch_head` was used, whatever its marks say.
//!
//! **What a path adds.** A frame that was handed to the kernel may or may not have gone out when
//! the process dies. Such a chain bears a second mark, in bytes that the protocol leaves free. The
//! next back end gives it back without sending the frame again. Other back ends know nothing of the
//! mark, and send the frame again.

mod region;
mod tracker;

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use region::InflightRegion;
pub(in crate::ring) use tracker::Left;
pub use tracker::Tracker;

/// What a ring found that the process before left in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Chains that are worked on again.
    pub again: usize,
    /// Chains that were given back: it is not known whether their frames went out.
    pub unsure: usize,
}

impl Recovered {
    /// Tells the log, if there was anything.
    pub fn log(&self, queue: u16) {
        let Self { again, unsure } = self;
        if again + unsure > 0 {
            tracing::info!(
                "queue {queue}: goes on after a back end that died: {again} chains in flight are worked on again, {unsure} that \
                 were being sent are given back, sent or not"
            );
        }
    }
}
