//! Set-up: how the area is cut, the ring, the registration, and what its refusal means.

use super::state::{self, State};
use super::{SUBMISSIONS, Zcrx};
use crate::probe::queue::zcrx_errors::{Registration, explain};
use crate::recv::core::Core;
use crate::recv::{Backend, Options, RecvError};
use crate::uring::wide::{Completions, WideRing};
use crate::uring::zcrx::{CopyStats, MOST_ENTRIES, Request, Source, Zcrx as Registered};
use io_uring::{IoUring, Probe, opcode};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Pieces of a buffer that may be lent at a time on a device queue, where a buffer holds several frames. More wait.
const PIECES: usize = 16;
/// The most leases at a time on a device queue.
const MOST_SLOTS: usize = 1 << 20;

/// How many leases the area gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::recv) struct Plan {
    /// Leases at a time.
    pub(in crate::recv) slots: usize,
    /// Leases that pause a connection.
    pub(in crate::recv) share: usize,
    /// Bytes of a buffer of the kernel.
    chunk: usize,
    /// Bytes of the area that are registered.
    registered: usize,
}

impl Plan {
    /// For these options, which are in range; `None` for other back ends.
    pub(in crate::recv) fn of(options: &Options) -> Result<Option<Self>, RecvError> {
        let has_device = match options.backend {
            Backend::Queue { .. } => true,
            Backend::NoDevice => false,
            _ => return Ok(None),
        };
        let page = rustix::param::page_size();
        let chunk = options.zcrx.rx_buf_len.map_or(page, |b| b as usize);
        let bytes = options.buffers.saturating_mul(options.buffer_bytes);
        if !chunk.is_power_of_two() || chunk < page || bytes / chunk < 2 {
            return Err(RecvError::ZeroCopyArea { bytes, chunk, page });
        }
        let buffers = bytes / chunk;
        // Without a device every completion has a buffer of its own, so that slots never run out before buffers.
        let slots = if has_device { (buffers * PIECES).min(MOST_SLOTS).max(buffers) } else { buffers };
        let share = options.share.unwrap_or(options.buffers / 4);
        let share = (share.min(options.buffers) * slots / options.buffers).max(1);
        Ok(Some(Self { slots, share, chunk, registered: buffers * chunk }))
    }
}

impl Zcrx {
    /// Makes the ring and registers the area.
    pub(in crate::recv) fn new(core: &mut Core, options: &Options) -> Result<Self, RecvError> {
        let Some(plan) = Plan::of(options)? else { return Err(RecvError::NotAvailable("zcrx")) };
        let kind = if options.zcrx.mixed { Completions::Mixed } else { Completions::Wide };
        let ring = WideRing::new(SUBMISSIONS.min(options.completions.max(1)), options.completions, kind)
            .map_err(|e| refused(e, options, kind))?;
        let area = core.pool.area(0).map(|a| a.base()).unwrap_or(std::ptr::null_mut());
        let buffers = plan.registered / plan.chunk;
        let entries = plan.slots.min(MOST_ENTRIES as usize).next_power_of_two() as u32;
        let mut request = Request {
            source: Source::NoDevice,
            area,
            area_bytes: plan.registered,
            entries,
            buffer_bytes: options.zcrx.rx_buf_len.unwrap_or(0),
            event_data: state::EVENT,
        };
        let queue = match &options.backend {
            Backend::Queue { interface, queue } => Some((interface.clone(), *queue)),
            _ => None,
        };
        let registered = match &queue {
            None => Ok(Source::NoDevice),
            Some((name, queue)) => index_of(name).map(|i| Source::Queue { interface: i, queue: *queue }),
        }
        .and_then(|source| {
            request.source = source;
            // SAFETY: the area lives in the pool as long as any lease; only leases, of what completions named, read it.
            unsafe { Registered::new(&ring, &request) }
        });
        let zcrx = registered.map_err(|e| explained(e, &queue, &request))?;
        // The ring goes with the last lease, see the module.
        core.pool.keep(Arc::clone(ring.fd()));
        let state = State::new(
            plan.slots,
            zcrx.entries(),
            zcrx.token(),
            plan.registered,
            zcrx.buffer_bytes(),
            queue.is_some(),
        );
        Ok(Self {
            ring,
            zcrx,
            state,
            pool: Arc::clone(&core.pool),
            queue,
            flush: options.zcrx.flush,
            no_flush: false,
            buffers,
            copied: CopyStats::default(),
            turns: 0,
            waited: false,
        })
    }
}

/// The number of an interface in the network namespace of the thread; ENODEV.
fn index_of(name: &str) -> io::Result<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(socket.as_fd(), name)?)
}

/// Why the ring can't be made.
fn refused(e: io::Error, options: &Options, kind: Completions) -> RecvError {
    match e.raw_os_error() {
        Some(libc::EINVAL) if kind == Completions::Mixed => {
            RecvError::TooOld { what: "completions of mixed length", since: "Linux 6.18" }
        }
        Some(libc::EINVAL) => RecvError::TooOld { what: "zero-copy receive", since: "Linux 6.15" },
        Some(libc::ENOMEM) => RecvError::Memlock { completions: options.completions, limit: locked_limit() },
        _ => crate::uring::refusal(e).into(),
    }
}

fn locked_limit() -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    limit.map_or_else(|| "unlimited".to_owned(), |l| l.to_string())
}

/// Why the registration failed, and what to do.
fn explained(e: io::Error, queue: &Option<(String, u32)>, request: &Request) -> RecvError {
    let Some(errno) = e.raw_os_error() else { return RecvError::system("io_uring_register(ZCRX_IFQ)")(e) };
    let (name, number) = match queue {
        Some((name, queue)) => (Some(name.as_str()), *queue),
        None => (None, 0),
    };
    let mut registration = Registration::new(name, number);
    registration.area_address = request.area as u64;
    registration.area_bytes = request.area_bytes as u64;
    registration.refill_entries = request.entries;
    registration.buffer_bytes = (request.buffer_bytes != 0).then_some(request.buffer_bytes);
    registration.has_recv_zc = has_recv_zc();
    let message = match (errno, registration.buffer_bytes) {
        (libc::EOPNOTSUPP, Some(bytes)) if queue.is_none() => format!(
            "zero-copy receive without a device can't be registered: its buffers are pages; {bytes} bytes were asked for \
             (rx_buf_len), ask for the default length"
        ),
        (libc::ERANGE, Some(bytes)) => format!(
            "queue {number} of {} can't be registered for zero-copy receive: the area's memory is not contiguous in pieces \
             of {bytes} bytes; take huge pages, or the default rx_buf_len",
            name.unwrap_or("IF")
        ),
        _ => explain(errno, &registration),
    };
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    RecvError::ZeroCopy { message: format!("{message} (this is Linux {release})"), source: e }
}

fn has_recv_zc() -> bool {
    let Ok(ring) = IoUring::new(2) else { return true };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).is_err() || probe.is_supported(opcode::RecvZc::CODE)
}
