//! The rings of a device, and what messages say of them. The methods return what a running device
//! has to know of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerowire_vhost_user::{Message, Request};

use super::eventfd::{check_eventfd, check_notifier};
use super::image::{File, RingImage};
use super::vring::Vring;
use super::{SessionError, protocol, refused};
use crate::host::{RingSetup, RingState};
use crate::ring::{RingAddresses, used_ring_bytes};

/// Where writes to a used ring are logged from now on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogChange {
    pub queue: u16,
    /// Where they were logged until now.
    pub before: Option<u64>,
    pub now: Option<u64>,
    /// True: the ring runs.
    pub runs: bool,
}

/// What a driver's descriptor is for.
#[derive(Debug)]
pub(super) enum Kick {
    /// The ring runs, and is notified by another descriptor from now on.
    Replace(u16, Arc<OwnedFd>),
    /// The ring starts, but for its marks in an in-flight region.
    Start(RingSetup),
}

/// A descriptor to notify a front end by, or none any more.
#[derive(Debug)]
pub(super) struct Notifier {
    pub queue: u16,
    pub fd: Option<Arc<OwnedFd>>,
}

/// The rings of a device.
#[derive(Debug)]
pub(super) struct Vrings {
    rings: Vec<Vring>,
    /// The hint in the error text when a front end names a queue that does not exist.
    hint: &'static str,
}

impl Vrings {
    pub(super) fn new(queues: usize, hint: &'static str) -> Self {
        Self { rings: (0..queues).map(|_| Vring::default()).collect(), hint }
    }

    pub(super) fn count(&self) -> usize {
        self.rings.len()
    }

    /// What a front end that asks for more queues than there are should be given.
    pub(super) fn describe(&self) -> String {
        format!("{} queues; {}", self.rings.len(), self.hint)
    }

    /// The ring of queue `index`, which the front end has named.
    pub(super) fn named(&mut self, request: Request, index: usize) -> Result<&mut Vring, SessionError> {
        let (count, hint) = (self.rings.len(), self.hint);
        self.rings
            .get_mut(index)
            .ok_or_else(|| protocol(request, format!("queue {index} of {count}: {hint}")))
    }

    /// The ring of a queue that the device has.
    pub(super) fn get_mut(&mut self, queue: u16) -> Option<&mut Vring> {
        self.rings.get_mut(usize::from(queue))
    }

    /// The rings, for an image.
    pub(super) fn image(&self) -> Vec<RingImage<File>> {
        self.rings.iter().map(Vring::image).collect()
    }

    /// Takes up the rings of an image. None of them runs yet.
    pub(super) fn restore(&mut self, images: &[RingImage<File>]) -> Result<(), SessionError> {
        for (queue, image) in images.iter().enumerate() {
            *self.named(Request::SetVringNum, queue)? = Vring::restore(queue, image)?;
        }
        Ok(())
    }

    /// Where the rings that run lie: queue, size, addresses and base.
    pub(super) fn started(&self) -> impl Iterator<Item = (u16, u16, RingAddresses, u16)> {
        let rings = self.rings.iter().enumerate().filter(|(_, r)| r.started);
        rings.filter_map(|(queue, r)| Some((queue as u16, r.size, r.addresses?, r.base)))
    }

    /// A queue whose ring runs.
    pub(super) fn any_started(&self) -> Option<usize> {
        self.rings.iter().position(|r| r.started)
    }

    /// Rings need not be enabled any more.
    pub(super) fn enable_all(&mut self) {
        self.rings.iter_mut().for_each(|r| r.state = RingState::Enabled);
    }

    /// Forgets what the front end said. No ring runs.
    pub(super) fn forget(&mut self) {
        self.rings.fill_with(Vring::default);
    }

    /// The queues whose used rings are logged, and where those end.
    pub(super) fn logged(&self) -> impl Iterator<Item = (usize, u64)> {
        let end = |at: u64, size| at.saturating_add(used_ring_bytes(size));
        self.rings.iter().enumerate().filter_map(move |(i, r)| Some((i, end(r.log_at?, r.size))))
    }

    /// SET_VRING_NUM.
    pub(super) fn set_size(&mut self, message: &Message) -> Result<(), SessionError> {
        let state = message.vring_state()?;
        self.named(Request::SetVringNum, state.index as usize)?.set_size(state.index, state.num)
    }

    /// SET_VRING_BASE.
    pub(super) fn set_base(&mut self, message: &Message) -> Result<(), SessionError> {
        let state = message.vring_state()?;
        self.named(Request::SetVringBase, state.index as usize)?.set_base(state.index, state.num)
    }

    /// SET_VRING_ADDR. Returns what changes in where the ring's writes are logged.
    pub(super) fn set_addresses(&mut self, message: &Message) -> Result<Option<LogChange>, SessionError> {
        let a = message.vring_addr()?;
        let ring = self.named(Request::SetVringAddr, a.index as usize)?;
        let before = ring.set_addresses(&a)?;
        let change = LogChange { queue: a.index as u16, before, now: ring.log_at, runs: ring.started };
        Ok((change.before != change.now).then_some(change))
    }

    /// SET_VRING_KICK, for a driver that acknowledged these features.
    pub(super) fn kick(&mut self, message: &mut Message, acked: u64) -> Result<Kick, SessionError> {
        let request = Request::SetVringKick;
        let v = message.vring_fd()?;
        let ring = self.named(request, v.index)?;
        let Some(kick) = v.fd else {
            return Err(refused(
                request,
                format!(
                    "queue {}: no kick descriptor, so that the ring would have to be polled: not supported",
                    v.index
                ),
            ));
        };
        check_eventfd(request, format_args!("queue {}", v.index), &kick)?;
        let (queue, kick) = (v.index as u16, Arc::new(kick));
        if ring.started {
            return Ok(Kick::Replace(queue, kick));
        }
        ring.setup(queue, kick, acked).map(Kick::Start)
    }

    /// SET_VRING_CALL. Returns the descriptor for the device, where the ring runs.
    pub(super) fn set_call(&mut self, message: &mut Message) -> Result<Option<Notifier>, SessionError> {
        self.set_notifier(Request::SetVringCall, message, |ring| &mut ring.call)
    }

    /// SET_VRING_ERR. Returns the descriptor for the device, where the ring runs.
    pub(super) fn set_err(&mut self, message: &mut Message) -> Result<Option<Notifier>, SessionError> {
        self.set_notifier(Request::SetVringErr, message, |ring| &mut ring.err)
    }

    fn set_notifier(
        &mut self,
        request: Request,
        message: &mut Message,
        field: impl FnOnce(&mut Vring) -> &mut Option<Arc<OwnedFd>>,
    ) -> Result<Option<Notifier>, SessionError> {
        let v = message.vring_fd()?;
        let ring = self.named(request, v.index)?;
        check_notifier(request, format_args!("queue {}", v.index), &v.fd)?;
        let runs = ring.started;
        let kept = field(ring);
        *kept = v.fd.map(Arc::new);
        Ok(runs.then(|| Notifier { queue: v.index as u16, fd: kept.clone() }))
    }

    /// SET_VRING_ENABLE. Returns the queue, whether it is enabled, and whether its ring runs.
    pub(super) fn enable(&mut self, message: &Message) -> Result<(u16, bool, bool), SessionError> {
        let request = Request::SetVringEnable;
        let state = message.vring_state()?;
        let index = state.index as usize;
        let on = match state.num {
            0 => false,
            1 => true,
            n => return Err(protocol(request, format!("queue {index}: {n} is neither 0 nor 1"))),
        };
        let ring = self.named(request, index)?;
        ring.state = RingState::set(on);
        Ok((index as u16, on, ring.started))
    }
}

#[cfg(test)]
mod tests;
