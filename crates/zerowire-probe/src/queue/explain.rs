//! What an error of the registration for zero-copy receive means, and what to do.

use super::super::{errno, nic};
use super::checks::ADMIN;
use super::facts::Facts;
use zerowire_sys::netlink::{DataSplit, QueueUser};

/// The most entries of a refill ring (`IO_RQ_MAX_ENTRIES`, io_uring/zcrx.c).
const MOST_ENTRIES: u32 = 32768;

/// What was to be registered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Registration<'a> {
    /// The interface; `None` for a registration without a device (ZCRX_REG_NODEV).
    pub interface: Option<&'a str>,
    /// The receive queue; of no meaning without an interface.
    pub queue: u32,
    /// Address of the area.
    pub area_address: u64,
    /// Bytes of the area.
    pub area_bytes: u64,
    /// Entries of the refill ring.
    pub refill_entries: u32,
    /// Bytes of a buffer, where they were asked for (`rx_buf_len`).
    pub buffer_bytes: Option<u32>,
    /// The ring has 32-byte completions (CQE32 or CQE_MIXED).
    pub is_wide: bool,
    /// The ring defers its work to the thread that asks (DEFER_TASKRUN).
    pub is_deferred: bool,
    /// The kernel knows IORING_OP_RECV_ZC (IORING_REGISTER_PROBE).
    pub has_recv_zc: bool,
}

impl<'a> Registration<'a> {
    /// A registration on a ring as it must be, for queue `queue` of `interface`, or without a
    /// device.
    pub fn new(interface: Option<&'a str>, queue: u32) -> Self {
        Self {
            interface,
            queue,
            area_address: 0,
            area_bytes: 0,
            refill_entries: 1,
            buffer_bytes: None,
            is_wide: true,
            is_deferred: true,
            has_recv_zc: true,
        }
    }

    fn subject(&self) -> String {
        self.interface.map_or_else(
            || "zero-copy receive without a device can't be registered".to_owned(),
            |i| format!("queue {} of {i} can't be registered for zero-copy receive", self.queue),
        )
    }
}

/// The message for the error number `errno` of IORING_REGISTER_ZCRX_IFQ: what was wrong, and what
/// to do.
///
/// Most causes share a few numbers. To tell them apart, the interface's settings are read again, in
/// the network namespace of the calling thread; nothing is changed.
pub fn explain(errno: i32, registration: &Registration<'_>) -> String {
    let facts = registration.interface.map(Facts::gather);
    explain_by(errno, registration, facts.as_ref().and_then(|f| f.as_ref().ok()))
}

/// The same from facts that were gathered.
pub(super) fn explain_by(errno: i32, registration: &Registration<'_>, facts: Option<&Facts>) -> String {
    format!("{} ({}): {}", registration.subject(), errno::words(errno), cause(errno, registration, facts))
}

fn cause(errno: i32, r: &Registration<'_>, facts: Option<&Facts>) -> String {
    let drivers = nic::SPLITTING.join(", ");
    let interface = r.interface.unwrap_or("IF");
    match errno {
        libc::EPERM | libc::EACCES => format!("CAP_NET_ADMIN is missing. {ADMIN}"),
        libc::ENODEV => format!(
            "there is no interface {interface} in this network namespace; 'ip link' lists those that are, 'ip netns exec \
             NAME' runs a program in another one"
        ),
        libc::EOPNOTSUPP => not_supported(r, facts, &drivers),
        libc::ERANGE => {
            let count = facts.and_then(Facts::receive_queues);
            let there = count.map_or("too few".to_owned(), |n| n.to_string());
            let more = r.queue.saturating_add(1);
            let command = facts.map_or_else(
                || format!("ethtool -L {interface} combined {more}"),
                |facts| facts.queues_command(more),
            );
            format!(
                "there is no queue {}: the interface has {there} in use; take a lower one, or '{command}'",
                r.queue
            )
        }
        libc::EEXIST | libc::EBUSY => taken(errno, r, facts),
        libc::EINVAL => invalid(r, facts),
        libc::ENOMEM => format!(
            "no memory for an area of {} and its rings, or the limit of locked memory is too low; take a smaller area, raise \
             the limit ('ulimit -l', LimitMEMLOCK= in a unit), or grant CAP_IPC_LOCK",
            errno::size(r.area_bytes)
        ),
        libc::EFAULT => {
            "the area or the refill ring is not memory that is mapped readable and writable".to_owned()
        }
        libc::ENETDOWN => format!("the interface is down; 'ip link set dev {interface} up'"),
        libc::ENOSYS => {
            "this kernel has no io_uring; boot Linux 6.15 or newer with CONFIG_IO_URING_ZCRX".to_owned()
        }
        _ => match r.interface {
            Some(i) => format!("'zerowire doctor -i {i} -q {}' goes through what a queue needs", r.queue),
            None => "'zerowire doctor --path recv' says what works here".to_owned(),
        },
    }
}

fn not_supported(r: &Registration<'_>, facts: Option<&Facts>, drivers: &str) -> String {
    let Some(interface) = r.interface else {
        return "this kernel has no part of that; boot Linux 7.1 or newer".to_owned();
    };
    let elsewhere =
        "on other interfaces Linux 7.1 or newer receives without a device, at one copy (ZCRX_REG_NODEV)";
    if facts.is_some_and(Facts::has_known_driver) {
        return match r.buffer_bytes {
            Some(bytes) => format!(
                "the NIC's generation or firmware has no queue management, or it can't fill buffers of {}; ask for the \
                 default length, or update the firmware",
                errno::size(bytes.into())
            ),
            None => format!(
                "the driver is one that can ({drivers}), but this NIC's generation, firmware or mode can't; 'ethtool -i \
                 {interface}' names the firmware"
            ),
        };
    }
    let driver = facts
        .and_then(|f| f.driver.as_deref())
        .map_or("its driver".to_owned(), |d| format!("its driver, {d},"));
    format!("{driver} has no queue management operations; drivers that have them: {drivers}; {elsewhere}")
}

fn taken(errno: i32, r: &Registration<'_>, facts: Option<&Facts>) -> String {
    let interface = r.interface.unwrap_or("IF");
    if let Some((place, program)) = facts.and_then(|f| f.link.xdp) {
        let which = program.map(|id| format!(" {id}")).unwrap_or_default();
        return format!(
            "XDP program{which} is attached to the interface; end its owner, or 'ip link set dev {interface} {} off'",
            place.keyword()
        );
    }
    match facts.and_then(|f| f.queue(r.queue)).and_then(|q| q.user) {
        Some(user) => format!("the queue is taken by {}; end that program, or take another queue", user.name()),
        None if errno == libc::EBUSY => format!(
            "the queue is taken, by {} or {}; end that program, or take another queue",
            QueueUser::AfXdp.name(),
            QueueUser::Lease.name()
        ),
        None => "an XDP program is attached to the interface, or the queue is taken by another program's memory; end its \
                 owner, or take another queue"
            .to_owned(),
    }
}

/// EINVAL has many causes: those that can be seen first, then those that are left.
fn invalid(r: &Registration<'_>, facts: Option<&Facts>) -> String {
    let page = rustix::param::page_size() as u64;
    let interface = r.interface.unwrap_or("IF");
    if !r.has_recv_zc {
        return "this kernel has no zero-copy receive; boot Linux 6.15 or newer with CONFIG_IO_URING_ZCRX"
            .to_owned();
    }
    if !r.is_wide {
        return "the ring has completions of 16 bytes; make it with CQE32 (or CQE_MIXED, Linux 6.18)"
            .to_owned();
    }
    if !r.is_deferred {
        return "the ring runs its work on any thread; make it with SINGLE_ISSUER and DEFER_TASKRUN"
            .to_owned();
    }
    if !r.area_bytes.is_multiple_of(page) || !r.area_address.is_multiple_of(page) {
        return format!(
            "the area ({} bytes at {:#x}) doesn't begin and end at a page; pages have {page} bytes",
            r.area_bytes, r.area_address
        );
    }
    if !(1..=MOST_ENTRIES).contains(&r.refill_entries) {
        return format!("the refill ring has {} entries; take 1 to {MOST_ENTRIES}", r.refill_entries);
    }
    if r.interface.is_none() {
        return "this kernel doesn't know ZCRX_REG_NODEV; boot Linux 7.1 or newer, or name a NIC's queue"
            .to_owned();
    }
    if facts.is_some_and(|f| f.data_split() == Some(DataSplit::Off)) {
        return format!("header split is off; 'ethtool -G {interface} tcp-data-split on'");
    }
    if let Some(bytes) = facts.and_then(|f| f.rings.as_ref().ok()?.hds_thresh).filter(|b| *b > 0) {
        return format!(
            "headers are split only in frames longer than {bytes} bytes; 'ethtool -G {interface} hds-thresh 0'"
        );
    }
    if let Some(bytes) = r.buffer_bytes.filter(|b| !b.is_power_of_two() || u64::from(*b) < page) {
        return format!("buffers of {bytes} bytes; take a power of two from {page} on");
    }
    let split = match facts.and_then(Facts::data_split) {
        Some(_) => String::new(),
        None => format!("header split is not on ('ethtool -G {interface} tcp-data-split on'), or "),
    };
    let length = r.buffer_bytes.map_or(String::new(), |b| {
        format!("the driver or this kernel takes no buffers of {b} bytes (ask for the default length), or ")
    });
    format!("{split}{length}the kernel is too old for what was asked (6.15 has the first version)")
}
