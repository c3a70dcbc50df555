//! Messages about rings.

use std::os::fd::OwnedFd;

use zerowire_vhost_user::{Message, Request};

use super::{Answer, Session, SessionError, protocol, refused};
use crate::host::{RingSetup, RingState};
use crate::memory::is_eventfd;
use crate::ring::{RingAddresses, SplitRing};

impl Session<'_> {
    pub(super) fn set_vring_num(&mut self, message: &Message) -> Result<(), SessionError> {
        let state = message.vring_state()?;
        self.rings.named(Request::SetVringNum, state.index as usize)?.set_size(state.index, state.num)
    }

    pub(super) fn set_vring_addr(&mut self, message: &Message) -> Result<(), SessionError> {
        let a = message.vring_addr()?;
        let index = a.index as usize;
        let ring = self.rings.named(Request::SetVringAddr, index)?;
        let before = ring.set_addresses(&a)?;
        let (log_at, started) = (ring.log_at, ring.started);
        if before == log_at {
            return Ok(());
        }
        // A log of this process's own reaches as far as it has to, the front end's is checked.
        if let Err(e) = self.renew_log() {
            self.rings.named(Request::SetVringAddr, index)?.log_at = before;
            return Err(refused(Request::SetVringAddr, e.to_string()));
        }
        if started {
            self.device.log_ring(a.index as u16, log_at);
        }
        Ok(())
    }

    pub(super) fn set_vring_base(&mut self, message: &Message) -> Result<(), SessionError> {
        let state = message.vring_state()?;
        self.rings.named(Request::SetVringBase, state.index as usize)?.set_base(state.index, state.num)
    }

    /// Stops the ring and answers where it has to go on.
    pub(super) fn get_vring_base(&mut self, message: &Message) -> Result<Answer, SessionError> {
        let state = message.vring_state()?;
        let index = state.index as usize;
        self.rings.named(Request::GetVringBase, index)?;
        let base = self.stop_ring(index);
        let mut body = state.index.to_le_bytes().to_vec();
        body.extend_from_slice(&u32::from(base).to_le_bytes());
        Ok(Answer::Bytes(body))
    }

    pub(super) fn stop_ring(&mut self, index: usize) -> u16 {
        let Some(ring) = self.rings.get_mut(index) else { return 0 };
        if std::mem::take(&mut ring.started)
            && let Some(base) = self.device.stop(index as u16)
        {
            ring.base = base;
        }
        ring.base
    }

    pub(super) fn set_vring_kick(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let request = Request::SetVringKick;
        let v = message.vring_fd()?;
        self.rings.named(request, v.index)?;
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
        let queue = v.index as u16;
        let inflight = self.inflight.tracker(queue);
        let ring = self.rings.named(request, v.index)?;
        if ring.started {
            self.device.kick(queue, kick);
            return Ok(());
        }
        let Some(addresses) = ring.addresses else {
            return Err(protocol(request, format!("queue {}: started without SET_VRING_ADDR", v.index)));
        };
        let (size, base, is_logged) = (ring.size, ring.base, ring.log_at.is_some());
        if size == 0 {
            return Err(protocol(request, format!("queue {}: started without SET_VRING_NUM", v.index)));
        }
        if is_logged {
            // Its size may have been told behind its addresses.
            self.renew_log().map_err(|e| refused(request, e.to_string()))?;
        }
        let base = self.first_entry(queue, (size, base), addresses, inflight.is_some())?;
        let ring = self.rings.named(request, v.index)?;
        let setup = RingSetup {
            queue,
            size,
            addresses,
            base,
            acked: self.acked,
            state: ring.state,
            log_at: ring.log_at,
            inflight,
            kick,
            call: duplicate(&ring.call),
            err: duplicate(&ring.err),
        };
        self.device.start(setup).map_err(|text| refused(request, text))?;
        ring.started = true;
        Ok(())
    }

    /// Where a ring that starts takes its first available entry.
    ///
    /// A ring that has stopped has nothing in flight: all entries before the used index are used,
    /// and none behind it. So it begins at the used index, whatever base the front end gives:
    /// cloud-hypervisor gives the *available* index where it did not stop the ring itself, and all
    /// buffers that the driver has posted would be skipped. The same holds after a back end that
    /// died, where chains are used in the order in which they became available.
    ///
    /// Where they are not, and no in-flight region (`marked`) says which ones are out, the used
    /// index says how many came back and not which. Then the base is taken as it was given: to skip
    /// chains is better than to return some twice.
    fn first_entry(
        &self,
        queue: u16,
        (size, base): (u16, u16),
        addresses: RingAddresses,
        marked: bool,
    ) -> Result<u16, SessionError> {
        let used = SplitRing::new(queue, size, addresses, base, false, self.memory.current())
            .map_err(|text| refused(Request::SetVringKick, text))?
            .next_used();
        if used == base || !(marked || self.device.uses_in_order(queue)) {
            return Ok(base);
        }
        tracing::info!(
            "{}: queue {queue} begins at its used index {used}, not at the base {base} that the front end gives",
            self.vm.control().name
        );
        Ok(used)
    }

    pub(super) fn set_vring_call(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let v = message.vring_fd()?;
        let ring = self.rings.named(Request::SetVringCall, v.index)?;
        check_notifier(Request::SetVringCall, format_args!("queue {}", v.index), &v.fd)?;
        ring.call = v.fd;
        if ring.started {
            let fd = duplicate(&ring.call);
            self.device.call(v.index as u16, fd);
        }
        Ok(())
    }

    pub(super) fn set_vring_err(&mut self, message: &mut Message) -> Result<(), SessionError> {
        let v = message.vring_fd()?;
        let ring = self.rings.named(Request::SetVringErr, v.index)?;
        check_notifier(Request::SetVringErr, format_args!("queue {}", v.index), &v.fd)?;
        ring.err = v.fd;
        if ring.started {
            let fd = duplicate(&ring.err);
            self.device.err(v.index as u16, fd);
        }
        Ok(())
    }

    pub(super) fn set_vring_enable(&mut self, message: &Message) -> Result<(), SessionError> {
        let request = Request::SetVringEnable;
        let state = message.vring_state()?;
        let index = state.index as usize;
        let on = match state.num {
            0 => false,
            1 => true,
            n => return Err(protocol(request, format!("queue {index}: {n} is neither 0 nor 1"))),
        };
        let ring = self.rings.named(request, index)?;
        ring.state = RingState::set(on);
        let runs = ring.started;
        self.device.enable(index as u16, on, runs);
        Ok(())
    }
}

/// A descriptor that a device's thread writes to must neither block it nor keep what is written:
/// only an eventfd will do, in its mode that does not wait.
///
/// Accepted risk: the front end shares the open file and can turn waiting on again. It holds up the
/// thread that serves its queues then (with vsock, that of all VMs of its groups), until somebody
/// waits for that thread ([`crate::host::writers`]).
pub(super) fn check_notifier(
    request: Request,
    of: impl std::fmt::Display,
    fd: &Option<OwnedFd>,
) -> Result<(), SessionError> {
    let Some(fd) = fd else { return Ok(()) };
    check_eventfd(request, &of, fd)?;
    let failed = |e: rustix::io::Errno| refused(request, format!("{of}: its descriptor can't be used: {e}"));
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
}

/// Any other descriptor can be one that a process of the front end's answers for.
fn check_eventfd(request: Request, of: impl std::fmt::Display, fd: &OwnedFd) -> Result<(), SessionError> {
    match is_eventfd(fd) {
        Ok(true) => Ok(()),
        Ok(false) => Err(protocol(request, format!("{of}: the descriptor is not an eventfd"))),
        Err(e) => Err(refused(
            request,
            format!("{of}: what its descriptor is can't be read below /proc: {e}; mount /proc for zerowire"),
        )),
    }
}

fn duplicate(fd: &Option<OwnedFd>) -> Option<OwnedFd> {
    fd.as_ref().and_then(|fd| fd.try_clone().ok())
}
