//! Why an engine could not be made or used.

use std::io;
use thiserror::Error;
use zerowire_sys::uring::UringProbeError;

/// Why an [`Engine`](super::Engine) could not be made, or an area not be registered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// io_uring is refused or absent.
    #[error("{0}; the socket back end needs no io_uring")]
    Refused(UringProbeError),
    /// The ring's own queues are charged to the user's locked memory, and the limit is reached.
    #[error(
        "a ring of {submissions} submissions and {completions} completions goes beyond RLIMIT_MEMLOCK, which is {limit} bytes and counts all that this user has locked: raise it (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock= of a container, or CAP_IPC_LOCK), or share one engine among all senders; the socket back end needs no io_uring"
    )]
    RingMemlock {
        /// Entries asked for.
        submissions: u32,
        /// Completions asked for.
        completions: u32,
        /// The limit in bytes, or "unlimited".
        limit: String,
    },
    /// Registering an area would lock more memory than this user may lock.
    #[error(
        "registering an area of {len} bytes goes beyond RLIMIT_MEMLOCK, which is {limit} bytes and counts all that this user has locked: raise it (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock= of a container, or CAP_IPC_LOCK), or make the area smaller, or send from it unregistered"
    )]
    Memlock {
        /// Length of the area in bytes.
        len: usize,
        /// The limit in bytes, or "unlimited".
        limit: String,
    },
    /// The kernel refused an area for another reason.
    #[error("registering an area of {len} bytes with io_uring failed: {cause}")]
    Register {
        /// Length of the area in bytes.
        len: usize,
        /// The system's answer.
        cause: io::Error,
    },
    /// The ring's table of buffers is full.
    #[error(
        "an area of {len} bytes does not fit the ring's table of {places} buffers of 1 GiB: make fewer and larger areas, or use several engines"
    )]
    TooManyAreas {
        /// Places in the table.
        places: usize,
        /// Length of the area in bytes.
        len: usize,
    },
    /// The ring failed and was closed; the text says why.
    #[error("{0}: the engine is closed, and its senders can send no more; make a new one")]
    Closed(String),
    /// A descriptor for waiting can't be made (EMFILE, ENOMEM).
    #[error("no descriptor to wait for the engine with: {0}")]
    Watch(io::Error),
    /// Used from a thread that didn't make it.
    #[error(
        "this engine belongs to the thread that made it (IORING_SETUP_SINGLE_ISSUER): make one engine a thread, or set `threads` to `Any`"
    )]
    WrongThread,
}

impl From<UringProbeError> for EngineError {
    fn from(error: UringProbeError) -> Self {
        Self::Refused(error)
    }
}
