//! What the front end has said of a ring, and what it may say of one that runs. Plain rules,
//! without a device.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerowire_vhost_user::{Request, VringAddr};

use super::eventfd::{check_eventfd, check_notifier};
use super::image::{File, RingImage};
use super::migration::log_address;
use super::{SessionError, protocol};
use crate::host::{RingSetup, RingState};
use crate::ring::RingAddresses;

/// What the front end has said of a ring.
#[derive(Debug, Default)]
pub(super) struct Vring {
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    /// Where writes to the used ring are logged, if they are.
    pub log_at: Option<u64>,
    pub base: u16,
    /// The driver's notifications, while the ring runs.
    pub kick: Option<Arc<OwnedFd>>,
    pub call: Option<Arc<OwnedFd>>,
    pub err: Option<Arc<OwnedFd>>,
    pub state: RingState,
    pub started: bool,
}

impl Vring {
    /// What is known of it, for an image.
    pub(super) fn image(&self) -> RingImage<File> {
        RingImage {
            size: self.size,
            addresses: self.addresses,
            log_at: self.log_at,
            base: self.base,
            state: self.state,
            kick: self.kick.clone().filter(|_| self.started),
            call: self.call.clone(),
            err: self.err.clone(),
        }
    }

    /// The ring of an image, which is `queue`'s and does not run yet.
    pub(super) fn restore(queue: usize, image: &RingImage<File>) -> Result<Self, SessionError> {
        let of = format_args!("queue {queue}");
        if let Some(kick) = &image.kick {
            check_eventfd(Request::SetVringKick, of, kick)?;
        }
        check_notifier(Request::SetVringCall, of, &image.call)?;
        check_notifier(Request::SetVringErr, of, &image.err)?;
        Ok(Self {
            size: image.size,
            addresses: image.addresses,
            log_at: image.log_at,
            base: image.base,
            kick: None,
            call: image.call.clone(),
            err: image.err.clone(),
            state: image.state,
            started: false,
        })
    }

    /// SET_VRING_NUM for this ring, which is `queue`'s.
    pub(super) fn set_size(&mut self, queue: u32, size: u32) -> Result<(), SessionError> {
        let request = Request::SetVringNum;
        match u16::try_from(size).ok().filter(|n| n.is_power_of_two() && *n <= 32768) {
            None => {
                let rule = "is not a power of two up to 32768 (virtio 1.3 §2.7)";
                Err(protocol(request, format!("queue {queue}: size {size} {rule}")))
            }
            Some(n) if self.started && n != self.size => {
                let text = format!("queue {queue}: size changed from {} to {n} while it runs", self.size);
                Err(protocol(request, text))
            }
            Some(n) => {
                self.size = n;
                Ok(())
            }
        }
    }

    /// SET_VRING_ADDR. Returns where writes to the used ring were logged before.
    pub(super) fn set_addresses(&mut self, a: &VringAddr) -> Result<Option<u64>, SessionError> {
        let addresses = RingAddresses { desc: a.desc, avail: a.avail, used: a.used };
        // A front end may send the same again, with another log flag.
        if self.started && self.addresses != Some(addresses) {
            let text = format!("queue {}: addresses changed while it runs", a.index);
            return Err(protocol(Request::SetVringAddr, text));
        }
        self.addresses = Some(addresses);
        Ok(std::mem::replace(&mut self.log_at, log_address(a.flags, a.log)))
    }

    /// SET_VRING_BASE for this ring, which is `queue`'s.
    pub(super) fn set_base(&mut self, queue: u32, base: u32) -> Result<(), SessionError> {
        let request = Request::SetVringBase;
        let base = u16::try_from(base)
            .map_err(|_| protocol(request, format!("queue {queue}: base {base} is more than 65535")))?;
        if self.started {
            return Err(protocol(request, format!("queue {queue}: base set while it runs")));
        }
        self.base = base;
        Ok(())
    }

    /// How this ring, which is `queue`'s, starts: without marks in an in-flight region.
    pub(super) fn setup(
        &self,
        queue: u16,
        kick: Arc<OwnedFd>,
        acked: u64,
    ) -> Result<RingSetup, SessionError> {
        let request = Request::SetVringKick;
        let Some(addresses) = self.addresses else {
            return Err(protocol(request, format!("queue {queue}: started without SET_VRING_ADDR")));
        };
        if self.size == 0 {
            return Err(protocol(request, format!("queue {queue}: started without SET_VRING_NUM")));
        }
        Ok(RingSetup {
            queue,
            size: self.size,
            addresses,
            base: self.base,
            acked,
            state: self.state,
            log_at: self.log_at,
            inflight: None,
            kick,
            call: self.call.clone(),
            err: self.err.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
