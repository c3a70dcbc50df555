//! The values of an image.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use zerowire_vhost_user::{HEADER_LEN, MAX_BODY, MAX_FDS};

use super::ImageError;
use crate::host::RingState;
use crate::memory::MAX_REGIONS;
use crate::ring::RingAddresses;
use crate::serve::Progress;
use crate::session::memory::MAX_REPEATS;

/// Rings of a device at most: two for each of the 256 queues that a tap has.
pub const MAX_RINGS: usize = 512;

/// Entries of a ring at most (virtio 1.3 §2.7).
const MAX_ENTRIES: u16 = 32768;

/// All of a session that its successor has to know. `F` stands for a descriptor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts<F> {
    pub connection: ConnectionImage<F>,
    pub front_end: FrontEndImage<F>,
    pub driver: DriverImage,
    pub memory: MemoryImage<F>,
    pub migration: MigrationImage<F>,
    pub inflight: InflightImage<F>,
    /// Where a state to load comes from, while the front end transfers one.
    pub loading: Option<F>,
    /// One for each queue that the device has.
    pub rings: Vec<RingImage<F>>,
}

/// The front end's socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionImage<F> {
    pub socket: F,
    /// What has arrived of an unfinished message.
    pub received: Vec<u8>,
    /// Descriptors that came with it.
    pub received_files: Vec<F>,
}

/// The other end of the socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrontEndImage<F> {
    /// Protocol features in force.
    pub protocol: u64,
    pub progress: Progress,
    /// For requests to it; held open, never written.
    pub channel: Option<F>,
    /// The guest's MTU in bytes, if it gave one.
    pub mtu: Option<u64>,
}

impl<F> Default for FrontEndImage<F> {
    fn default() -> Self {
        Self { protocol: 0, progress: Progress::default(), channel: None, mtu: None }
    }
}

/// What the guest's driver has chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverImage {
    /// Features.
    pub acked: u64,
    /// Device status.
    pub status: u64,
    /// True: a ring broke since the driver reset the device.
    pub needs_reset: bool,
}

/// The guest's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryImage<F> {
    pub regions: Vec<RegionImage<F>>,
    /// Guest address, user address and length of regions that were added again.
    pub repeats: Vec<(u64, u64, u64)>,
}

/// A memory region as the front end described it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionImage<F> {
    pub guest_addr: u64,
    /// Bytes.
    pub len: u64,
    pub user_addr: u64,
    /// Where it begins in its file, bytes.
    pub offset: u64,
    pub file: F,
}

/// The dirty log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrationImage<F> {
    /// The front end's.
    pub log: Option<LogImage<F>>,
    /// What was noted before the front end gave its log. That takes these bits over.
    pub early: Option<LogImage<F>>,
    /// Is notified of the log's changes.
    pub signal: Option<F>,
}

/// A dirty log in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogImage<F> {
    /// Where it begins in its file, bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    pub file: F,
}

/// Where chains in flight are marked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InflightImage<F> {
    /// The region that the front end keeps.
    pub shared: Option<AreaImage<F>>,
    /// The region that whoever keeps the image has.
    pub own: Option<AreaImage<F>>,
}

/// A region for marks in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AreaImage<F> {
    pub queues: u16,
    /// Entries of each.
    pub queue_size: u16,
    /// Where it begins in its file, bytes.
    pub offset: u64,
    pub file: F,
}

/// A ring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RingImage<F> {
    /// Entries; 0 where the front end has not said.
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    /// Where writes to the used ring are logged, if they are.
    pub log_at: Option<u64>,
    /// The available entry to take next.
    pub base: u16,
    pub state: RingState,
    /// The driver's notifications. A ring runs if it has them.
    pub kick: Option<F>,
    pub call: Option<F>,
    pub err: Option<F>,
}

impl<F> Parts<F> {
    /// The same with what `f` makes of each descriptor. The order of its calls is that of the
    /// descriptors behind an image.
    pub fn map<G, E>(self, f: &mut impl FnMut(F) -> Result<G, E>) -> Result<Parts<G>, E> {
        let Self { connection, front_end, driver, memory, migration, inflight, loading, rings } = self;
        let ConnectionImage { socket, received, received_files } = connection;
        let FrontEndImage { protocol, progress, channel, mtu } = front_end;
        let MemoryImage { regions, repeats } = memory;
        let MigrationImage { log, early, signal } = migration;
        Ok(Parts {
            connection: ConnectionImage {
                socket: f(socket)?,
                received,
                received_files: received_files.into_iter().map(&mut *f).collect::<Result<_, _>>()?,
            },
            front_end: FrontEndImage { protocol, progress, channel: channel.map(&mut *f).transpose()?, mtu },
            driver,
            memory: MemoryImage {
                regions: regions.into_iter().map(|r| r.map(f)).collect::<Result<_, _>>()?,
                repeats,
            },
            migration: MigrationImage {
                log: log.map(|l| l.map(f)).transpose()?,
                early: early.map(|l| l.map(f)).transpose()?,
                signal: signal.map(&mut *f).transpose()?,
            },
            inflight: InflightImage {
                shared: inflight.shared.map(|a| a.map(f)).transpose()?,
                own: inflight.own.map(|a| a.map(f)).transpose()?,
            },
            loading: loading.map(&mut *f).transpose()?,
            rings: rings.into_iter().map(|r| r.map(f)).collect::<Result<_, _>>()?,
        })
    }

    /// Checks what needs no device: that no list is too long, and that a ring which runs is
    /// complete.
    pub fn check(&self) -> Result<(), ImageError> {
        let Self { connection, driver, memory, inflight, rings, .. } = self;
        at_most("bytes of an unfinished message", connection.received.len(), HEADER_LEN + MAX_BODY)?;
        at_most("descriptors of an unfinished message", connection.received_files.len(), MAX_FDS)?;
        within("device status", driver.status, driver.status <= 0xff, "where 255 is the most")?;
        at_most("memory regions", memory.regions.len(), MAX_REGIONS)?;
        at_most("regions added again", memory.repeats.len(), MAX_REPEATS)?;
        at_most("rings", rings.len(), MAX_RINGS)?;
        for area in inflight.shared.iter().chain(&inflight.own) {
            let queues = usize::from(area.queues);
            let rule = "and it must be from 1 to the number of rings";
            within("queues of an in-flight region", area.queues, (1..=rings.len()).contains(&queues), rule)?;
            let sound = is_ring_size(area.queue_size);
            within("entries of an in-flight region", area.queue_size, sound, RING_SIZE)?;
        }
        rings.iter().enumerate().try_for_each(|(queue, ring)| ring.check(queue))
    }
}

impl<F> RegionImage<F> {
    fn map<G, E>(self, f: &mut impl FnMut(F) -> Result<G, E>) -> Result<RegionImage<G>, E> {
        let Self { guest_addr, len, user_addr, offset, file } = self;
        Ok(RegionImage { guest_addr, len, user_addr, offset, file: f(file)? })
    }
}

impl<F> LogImage<F> {
    fn map<G, E>(self, f: &mut impl FnMut(F) -> Result<G, E>) -> Result<LogImage<G>, E> {
        Ok(LogImage { offset: self.offset, len: self.len, file: f(self.file)? })
    }
}

impl<F> AreaImage<F> {
    fn map<G, E>(self, f: &mut impl FnMut(F) -> Result<G, E>) -> Result<AreaImage<G>, E> {
        let Self { queues, queue_size, offset, file } = self;
        Ok(AreaImage { queues, queue_size, offset, file: f(file)? })
    }
}

impl<F> RingImage<F> {
    fn map<G, E>(self, f: &mut impl FnMut(F) -> Result<G, E>) -> Result<RingImage<G>, E> {
        let Self { size, addresses, log_at, base, state, kick, call, err } = self;
        Ok(RingImage {
            size,
            addresses,
            log_at,
            base,
            state,
            kick: kick.map(&mut *f).transpose()?,
            call: call.map(&mut *f).transpose()?,
            err: err.map(f).transpose()?,
        })
    }

    fn check(&self, queue: usize) -> Result<(), ImageError> {
        let what = format_args!("the size of queue {queue}");
        let runs = self.kick.is_some();
        within(what, self.size, is_ring_size(self.size) || (self.size == 0 && !runs), RING_SIZE)?;
        if runs && self.addresses.is_none() {
            return Err(ImageError::Refused(format!("queue {queue} runs and has no addresses")));
        }
        Ok(())
    }
}

const RING_SIZE: &str = "and it must be a power of two up to 32768";

fn is_ring_size(size: u16) -> bool {
    size.is_power_of_two() && size <= MAX_ENTRIES
}

fn within(
    what: impl Display,
    value: impl Into<u64>,
    is_sound: bool,
    rule: &'static str,
) -> Result<(), ImageError> {
    if is_sound {
        return Ok(());
    }
    Err(ImageError::Value { what: what.to_string(), value: value.into(), rule })
}

pub fn at_most(what: &str, count: usize, most: usize) -> Result<(), ImageError> {
    if count <= most {
        return Ok(());
    }
    Err(ImageError::Refused(format!("{what}: {count}, where {most} are the most")))
}
