//! What the receiver needs of a way to receive. A back end moves bytes into buffers and says so to
//! [`RecvState`], which lends them, counts, and keeps the connections. A back end decides nothing
//! about who may hold how much.

#[cfg(feature = "zcrx")]
use super::SharedArea;
use super::core::RecvState;
use super::{RecvError, ZeroCopied};
use crate::area::AreaOptions;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// One way to receive. All methods are called by one thread, with the same [`RecvState`].
pub(crate) trait Engine {
    /// What it is, with the features in use, as words for people.
    fn path(&self) -> String;

    /// Whether what it lends as placed by the NIC is just that.
    fn zero_copied(&self) -> ZeroCopied {
        ZeroCopied::Exact
    }

    /// A connection was put at `place` (`core.connections[place]`, open, not paused), which gets
    /// `socket` when this returns. Receiving begins at the next turn, so that a limit that is set
    /// before holds from the first byte. After an error nothing here knows the socket.
    fn add(&mut self, core: &mut RecvState, place: u32, socket: BorrowedFd<'_>) -> Result<(), RecvError>;

    /// Stops receiving on `place`, until the next [`Engine::resume`], or for good. When this
    /// returns the kernel has let go of the socket. All that had been received is lent (in
    /// `core.arrivals`) or still in the socket. On an error the connection stays.
    fn stop(&mut self, core: &mut RecvState, place: u32) -> Result<(), RecvError>;

    /// `place` may be received on again: its leases came back, or its limit was raised. Called for
    /// connections that [`RecvState::may_receive`] is true of.
    fn resume(&mut self, core: &mut RecvState, place: u32);

    /// Accepts connections from `socket` from the next turn on; `core.listeners` gets the socket at
    /// `index`. After an error nothing here knows it.
    fn listen(&mut self, index: u32, socket: BorrowedFd<'_>) -> Result<(), RecvError>;

    /// Stops that: when this returns the kernel has let go of the listening socket, and what it had
    /// accepted is in `core.listeners`. `core.listeners` doesn't want it any more already. On an
    /// error it stays.
    fn unlisten(&mut self, core: &mut RecvState, index: u32) -> Result<(), RecvError>;

    /// The receiver goes, and this back end right after.
    fn close(&mut self, _core: &mut RecvState) {}

    /// A slot has come back and is free in `core.holdings`. Where slots are not buffers (zcrx), the
    /// refill ring gets its entry here.
    fn returned(&mut self, _slot: u32) {}

    /// Makes the area usable by other receivers.
    #[cfg(feature = "zcrx")]
    fn export(&mut self, _core: &mut RecvState) -> Result<SharedArea, RecvError> {
        Err(RecvError::NotShareable)
    }

    /// Adds an area to the one there is.
    fn add_area(&mut self, _core: &mut RecvState, _area: AreaOptions) -> Result<(), RecvError> {
        Err(RecvError::OneArea)
    }

    /// One turn: hands buffers to the kernel, takes what has arrived, and waits for at most
    /// `timeout` (`None`: for ever) when there is nothing. It may return early with nothing.
    /// Arrivals go to `core.arrivals`, which is empty at the start, through [`RecvState`]'s
    /// methods.
    fn turn(&mut self, core: &mut RecvState, timeout: Option<Duration>) -> Result<(), RecvError>;
}
