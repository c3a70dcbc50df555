//! Who decides whether front ends are let in.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Decides whether a VM's front end is let in, and when its connection has to end. Belongs to the
/// VM's control thread, which looks at it between messages.
///
/// ```text
///  look ─▶ admits ─▶ connected ─▶ ( look ─▶ ends )… ─▶ turn_away
/// ```
pub trait Admission: Send {
    /// Looks at what decides, and says so in the log where another answer counts from now on.
    fn look(&mut self);

    /// Whether a front end is let in. Else connections are refused.
    fn admits(&self) -> bool;

    /// A front end has connected.
    fn connected(&mut self);

    /// Whether the connection has to end.
    fn ends(&self) -> bool;

    /// The connection ends since it has to. Returns why, for the log.
    fn turn_away(&mut self, stream: &UnixStream) -> &'static str;

    /// What becomes readable when there is something to look at.
    fn wakers(&self) -> Vec<BorrowedFd<'_>>;

    /// How long the control thread may wait until it must look again; with a front end or without.
    fn due(&self, connected: bool) -> Option<Duration>;
}
