//! Set-up: how an area is cut, the ring, the registration, areas that are added later, and what
//! their refusal means.

use super::areas::{AreaCut, Areas, Share};
use super::refusal::{ABSENT, explained, import_refused, not_added, refused};
use super::shared::{Leftover, SharedIfq};
use super::state::{self, ZcrxState};
use super::{SUBMISSIONS, SharedArea, Zcrx};
use crate::area::{Area, AreaOptions};
use crate::recv::core::RecvState;
use crate::recv::receiver::core_on;
use crate::recv::{RecvBackend, RecvError, RecvOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;
use zerowire_sys::netdevice;
use zerowire_sys::uring::wide::{Completions, WideRing};
use zerowire_sys::uring::zcrx::{MOST_ENTRIES, Zcrx as Registered, ZcrxRequest, ZcrxSource};

/// Pieces of a buffer that may be lent at a time on a device queue, where a buffer holds several
/// frames. More wait.
const PIECES: usize = 16;
/// The most leases at a time on a device queue.
const MOST_SLOTS: usize = 1 << 20;

/// How often to try a queue that is taken. The kernel gives a ring's queue back some milliseconds
/// after the ring was closed: the driver needs this time to restart the queue.
const TAKEN_TRIES: u32 = 100;
const TAKEN_PAUSE: Duration = Duration::from_millis(10);

/// How many leases the area gives.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeasePlan {
    /// Leases at a time.
    pub(super) slots: usize,
    /// Leases that pause a connection.
    pub(super) share: usize,
    /// Bytes of the area that are registered.
    registered: usize,
}

impl LeasePlan {
    /// For these options, which are in range; `None` for other back ends, which have no use for a
    /// DMA buffer.
    pub(super) fn of(options: &RecvOptions) -> Result<Option<Self>, RecvError> {
        let has_device = match options.backend {
            RecvBackend::Queue { .. } => true,
            RecvBackend::NoDevice => false,
            _ if options.zcrx.dmabuf.is_some() => return Err(RecvError::DmabufNeedsQueue),
            _ => return Ok(None),
        };
        let chunk = options.zcrx.rx_buf_len.map_or_else(rustix::param::page_size, |b| b as usize);
        let bytes = match &options.zcrx.dmabuf {
            Some(_) if !has_device => return Err(RecvError::DmabufNeedsQueue),
            Some(dmabuf) => dmabuf.len(),
            None => options.buffers.saturating_mul(options.buffer_bytes),
        };
        let registered = Self::registered(bytes, chunk)?;
        Ok(Some(Self { registered, ..Self::leases(registered / chunk, has_device, options) }))
    }

    /// How many bytes of an area are registered, in buffers of `chunk`.
    pub(super) fn registered(bytes: usize, chunk: usize) -> Result<usize, RecvError> {
        let page = rustix::param::page_size();
        if !chunk.is_power_of_two() || chunk < page || bytes / chunk < 2 {
            return Err(RecvError::ZeroCopyArea { bytes, chunk, page });
        }
        Ok(bytes / chunk * chunk)
    }

    /// Leases at a time that suit an area of this many buffers.
    pub(super) fn slots(buffers: usize, has_device: bool) -> usize {
        // Without a device every completion has a buffer of its own, so that slots never run out
        // before buffers.
        if has_device { (buffers * PIECES).min(MOST_SLOTS).max(buffers) } else { buffers }
    }

    /// For a receiver that uses the area of another one: `buffers * buffer_bytes` is what it may
    /// hold of it.
    pub(super) fn part(shared: &SharedIfq, options: &RecvOptions) -> Self {
        let bytes = options.buffers.saturating_mul(options.buffer_bytes);
        let buffers = bytes / shared.areas.buffer_bytes().max(1) as usize;
        Self::leases(buffers.clamp(1, shared.areas.buffers().max(1)), shared.queue.is_some(), options)
    }

    fn leases(buffers: usize, has_device: bool, options: &RecvOptions) -> Self {
        let slots = Self::slots(buffers, has_device);
        let share = Share { asked: options.share, buffers: options.buffers }.of(slots);
        Self { slots, share, registered: 0 }
    }
}

/// The memory, and the book of its leases; `None` for other back ends. The options are in range.
pub(in crate::recv) fn new_core(options: &RecvOptions) -> Result<Option<RecvState>, RecvError> {
    let Some(plan) = LeasePlan::of(options)? else { return Ok(None) };
    let RecvOptions { buffer_bytes, buffers, pages, .. } = *options;
    let area = match &options.zcrx.dmabuf {
        Some(dmabuf) => dmabuf.area()?,
        None => Area::new(AreaOptions { buffer_bytes, buffers, pages })?,
    };
    core_on(area, buffer_bytes, plan.slots, plan.share).map(Some)
}

impl Zcrx {
    /// Makes the ring and registers the area.
    pub(in crate::recv) fn new(core: &mut RecvState, options: &RecvOptions) -> Result<Self, RecvError> {
        let Some(plan) = LeasePlan::of(options)? else { return Err(RecvError::NotAvailable("zcrx")) };
        let ring = make_ring(options)?;
        let Some(area) = core.pool.area(0).cloned() else { return Err(RecvError::NotAvailable("zcrx")) };
        let mut request = ZcrxRequest {
            source: ZcrxSource::NoDevice,
            area: area.base(),
            area_bytes: plan.registered,
            dmabuf: options.zcrx.dmabuf.as_ref().map(|dmabuf| dmabuf.fd.as_raw_fd()),
            entries: plan.slots.min(MOST_ENTRIES as usize).next_power_of_two() as u32,
            kernel_ring: options.zcrx.kernel_ring,
            buffer_bytes: options.zcrx.rx_buf_len.unwrap_or(0),
            event_data: state::EVENT,
        };
        let queue = match &options.backend {
            RecvBackend::Queue { interface, queue } => Some((interface.clone(), *queue)),
            _ => None,
        };
        let registered = match &queue {
            None => Ok(ZcrxSource::NoDevice),
            Some((name, queue)) => netdevice::socket()
                .and_then(|socket| netdevice::index(socket, name))
                .map(|interface| ZcrxSource::Queue { interface, queue: *queue }),
        }
        .and_then(|source| {
            request.source = source;
            // SAFETY: the area lives in the pool as long as any lease; only leases, of what
            // completions named, read it.
            patiently(queue.is_some(), || unsafe { Registered::new(&ring, &request) })
        });
        let (zcrx, answer) = registered.map_err(|e| explained(e, &queue, &request))?;
        let cut =
            AreaCut { area_bytes: plan.registered, buffer_bytes: answer.buffer_bytes, token: answer.token };
        let shared = SharedIfq::new(Areas::new(area, cut), queue, Arc::clone(zcrx.region()));
        Ok(Self::on(core, options, ring, zcrx, Arc::new(shared)))
    }

    /// Makes a ring that uses the area of another one.
    pub(in crate::recv) fn sharing(
        core: &mut RecvState,
        area: &SharedArea,
        options: &RecvOptions,
    ) -> Result<Self, RecvError> {
        let ring = make_ring(options)?;
        // SAFETY: the area lives in this core's pool, too, as long as any lease; only leases, of
        // what completions of this ring named, read it.
        let zcrx = unsafe { Registered::import(&ring, area.fd.as_fd(), &area.shared.region) };
        let zcrx = zcrx.map_err(import_refused)?;
        Ok(Self::on(core, options, ring, zcrx, Arc::clone(&area.shared)))
    }

    /// See [`Receiver::add_area`](crate::recv::Receiver::add_area).
    pub(super) fn append(&mut self, core: &mut RecvState, options: AreaOptions) -> Result<(), RecvError> {
        let chunk = self.shared.areas.buffer_bytes() as usize;
        let registered = LeasePlan::registered(options.buffers.saturating_mul(options.buffer_bytes), chunk)?;
        // Asked first: older kernels answer what can mean other things, too.
        if !self.zcrx.has_more_areas() {
            return Err(not_added(&io::Error::from_raw_os_error(ABSENT), registered));
        }
        let area = Area::new(options)?;
        let base = area.base();
        core.called();
        // SAFETY: the list and the pool keep the memory as long as any lease; only leases, of what
        // completions named, read it.
        let added =
            self.shared.areas.add(area, registered, || unsafe { self.zcrx.add_area(base, registered) });
        let cut = match added {
            None => return Err(not_added(&io::Error::from_raw_os_error(libc::EINVAL), registered)),
            Some(Err(e)) if e.raw_os_error() == Some(libc::EEXIST) => return Err(RecvError::WrongThread),
            Some(Err(e)) => return Err(not_added(&e, registered)),
            Some(Ok(cut)) => cut,
        };
        self.state.learn(&core.pool);
        self.share.buffers += options.buffers;
        let slots = LeasePlan::slots(cut.buffers(), self.has_device());
        let share = self.share.of(core.holdings.slots() + slots);
        self.state.make_room(core, slots, share);
        Ok(())
    }

    fn on(
        core: &mut RecvState,
        options: &RecvOptions,
        ring: WideRing,
        zcrx: Registered,
        shared: Arc<SharedIfq>,
    ) -> Self {
        // The ring goes with the last lease, see the module.
        let left = Arc::new(Leftover::new(Arc::clone(&shared), Arc::clone(ring.fd())));
        core.pool.keep(Arc::clone(&left) as _);
        let areas = Arc::clone(&shared.areas);
        let state = ZcrxState::new(core.holdings.slots(), &core.pool, areas, shared.owed.clone());
        Self {
            ring,
            zcrx,
            state,
            left,
            flush: options.zcrx.flush,
            no_flush: false,
            share: Share { asked: options.share, buffers: options.buffers },
            dmabuf: options.zcrx.dmabuf.clone().filter(|_| shared.queue.is_some()),
            shared,
            turns: 0,
            came: 0,
            tried: None,
        }
    }
}

fn make_ring(options: &RecvOptions) -> Result<WideRing, RecvError> {
    let kind = if options.zcrx.mixed { Completions::Mixed } else { Completions::Wide };
    WideRing::new(SUBMISSIONS.min(options.completions.max(1)), options.completions, kind)
        .map_err(|e| refused(e, options, kind))
}

/// A queue that was given back a moment ago is still taken, and its interface may be at work: tries
/// again for a while.
fn patiently<T>(has_device: bool, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = if has_device { TAKEN_TRIES } else { 0 };
    loop {
        match attempt() {
            Err(e) if tries > 0 && matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                tries -= 1;
                std::thread::sleep(TAKEN_PAUSE);
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_becomes_free_is_taken() {
        for errno in [libc::EBUSY, libc::EEXIST] {
            let mut tries = 0;
            let result = patiently(true, || {
                tries += 1;
                if tries < 3 { Err(io::Error::from_raw_os_error(errno)) } else { Ok(tries) }
            });
            assert_eq!(result.unwrap(), 3);
        }
    }

    #[test]
    fn other_errors_and_no_device_are_not_tried_again() {
        for (has_device, errno) in [(true, libc::EINVAL), (false, libc::EBUSY)] {
            let mut tries = 0;
            let result: io::Result<()> = patiently(has_device, || {
                tries += 1;
                Err(io::Error::from_raw_os_error(errno))
            });
            assert_eq!((result.unwrap_err().raw_os_error(), tries), (Some(errno), 1));
        }
    }
}
