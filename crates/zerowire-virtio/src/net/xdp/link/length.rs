//! How long frames from the guest may be: an interface's MTU changes while it is up.

use rustix::io::Errno;

use super::Link;
use super::state::BoundSocket;
use crate::net::xdp::geometry::Geometry;

impl Link {
    /// [`Self::events`] became readable. Where the interface is gone, so is the socket. With a
    /// larger MTU than the memory was registered for, the memory is registered anew. With a smaller
    /// one, longer frames from the guest are dropped here. The kernel doesn't check: it would send
    /// them.
    #[cold]
    pub fn notice(&mut self) {
        let Some(BoundSocket { watch, interface, .. }) = &self.bound else { return };
        watch.drain();
        let Ok(mtu) = interface.mtu() else { return self.lost(Errno::NODEV) };
        if let Some(umem) = &self.registered.umem {
            self.care.attention |= self.options.registrar.is_outgrown(umem, mtu);
        }
        self.limit(mtu);
    }

    /// The interface has this MTU now.
    pub(super) fn limit(&mut self, mtu: usize) {
        let Some(registered) = self.geometry() else { return };
        let allows = Geometry::new(mtu, registered.zero_copy()).frame_bytes().min(registered.frame_bytes());
        if std::mem::replace(&mut self.registered.mtu_allows, allows) != allows {
            tracing::info!(
                "interface {}, queue {}: MTU {mtu} now: frames from the guest may have {allows} bytes",
                self.options.interface,
                self.options.queue
            );
        }
    }

    /// The longest frame that goes out, bytes; 0 without memory to send from.
    #[inline]
    pub(in crate::net::xdp) fn longest(&self) -> usize {
        if self.registered.umem.is_some() { self.registered.mtu_allows as usize } else { 0 }
    }
}
