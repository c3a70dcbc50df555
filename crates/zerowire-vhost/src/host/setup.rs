//! How a ring starts.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ring::RingAddresses;
use crate::ring::inflight::Tracker;

/// Whether a ring that has started is served (vhost-user, "Ring states").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingState {
    /// It was never enabled: left alone. Front ends enable rings right after they started them, and
    /// the frames of a guest that was reconnected wait there.
    #[default]
    Waiting,
    /// Frames or packets move.
    Enabled,
    /// It was disabled by SET_VRING_ENABLE: a transmit ring of a network device discards what it is
    /// given.
    Discarding,
}

impl RingState {
    /// What SET_VRING_ENABLE makes of any state.
    pub fn set(on: bool) -> Self {
        if on { Self::Enabled } else { Self::Discarding }
    }
}

/// A ring that starts, as the front end has described it.
#[derive(Debug)]
pub struct RingSetup {
    /// The queue's number.
    pub queue: u16,
    /// Entries.
    pub size: u16,
    /// Where its parts are.
    pub addresses: RingAddresses,
    /// The available entry to take first.
    pub base: u16,
    /// Features that the guest acknowledged.
    pub acked: u64,
    /// Whether it is served.
    pub state: RingState,
    /// The guest address of the used ring, where writes to it are noted in the dirty log.
    pub log_at: Option<u64>,
    /// Where its chains in flight are marked; the ring takes it.
    pub inflight: Option<Box<Tracker>>,
    /// The driver's notifications.
    pub kick: Arc<OwnedFd>,
    /// Notifications to the driver.
    pub call: Option<Arc<OwnedFd>>,
    /// Tells the front end of a broken ring.
    pub err: Option<Arc<OwnedFd>>,
}
