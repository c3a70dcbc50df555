//! Descriptors that can't be sent yet, since too many are under way.
//!
//! All processes of a user together may have as many descriptors under way in sockets as one may
//! have open (RLIMIT_NOFILE), but for those with CAP_SYS_RESOURCE. sendmsg(2) fails with
//! ETOOMANYREFS then.

use std::time::{Duration, Instant};

use rustix::io::Errno;

/// The pause between two tries.
const CROWD_LOOK: Duration = Duration::from_millis(5);

/// Sends descriptors by `send`, and tries again until `deadline` while too many are under way.
/// Nothing tells when some have been received.
///
/// # Errors
/// Those of `send`; TOOMANYREFS where too many are still under way.
pub fn retry_while_crowded<T>(
    deadline: Instant,
    mut send: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    loop {
        match send() {
            Err(Errno::TOOMANYREFS) if Instant::now() < deadline => std::thread::park_timeout(CROWD_LOOK),
            sent => return sent,
        }
    }
}
