//! Mapped receive: a host program gets a guest's payload in memory that it shares with this
//! process. The payload lies in windows, each published and released by one store
//! (docs/mapped-receive.md).

mod client;
mod direct;
mod memory;
mod quota;
mod windows;

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use client::{
    AskedFor, CROWDED, MapClient, Stage, is_crowded, receive_request, send_connection, send_reply,
};
pub use direct::{Direct, DirectChain, files as region_files, region_table};
pub use memory::ProgramFiles;
pub use quota::{MapClaim, MapUse};
pub use windows::{Ended, Windows};

/// The default of [`MapPolicy::hold`]. A program that works on its windows has given them back long
/// before. One that was not scheduled for some time slices has as well.
const HOLD: Duration = Duration::from_millis(100);

/// A user whose programs may take the guest's connections to ports of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapListen {
    /// The user's number.
    pub user: u32,
    /// The ports; all of them where the list is empty.
    pub ports: Vec<RangeInclusive<u32>>,
}

/// Who may map, how much, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MapPolicy {
    /// The user who may all that is possible here, as root may. This process's own where it is
    /// None: see [`Self::complete`].
    pub own_user: Option<u32>,
    /// Users, beside root and the own one, whose programs may connect to ports of the guest
    /// at `UDS.map`.
    pub allow: Vec<u32>,
    /// Users, beside those two, whose programs may take ports of the host there.
    pub listen: Vec<MapListen>,
    /// Bytes that a connection may map at most.
    pub max_bytes: u64,
    /// Mapped connections of the VM at most. The VM's share of what the process may have where it
    /// is None: see [`Self::complete`].
    pub max_connections: Option<usize>,
    /// Bytes that all of them may map at most.
    pub max_total_bytes: u64,
    /// Programs that ask for it get the guest's memory to read, all of it, so that payload needs no
    /// copy. What else the guest keeps there they can read as well.
    pub share_guest_memory: bool,
    /// How long a chain of the guest may be lent to such a program; 1 ms to 60 s. After that,
    /// further payload for it is copied until it has given back all that it holds.
    pub hold: Duration,
}

impl Default for MapPolicy {
    fn default() -> Self {
        Self {
            own_user: None,
            allow: Vec::new(),
            listen: Vec::new(),
            max_bytes: 64 << 20,
            max_connections: None,
            max_total_bytes: 2 << 30,
            share_guest_memory: false,
            hold: HOLD,
        }
    }
}

impl MapPolicy {
    zerowire_wire::setters! {
        own_user: Option<u32>,
        allow: Vec<u32>,
        listen: Vec<MapListen>,
        max_bytes: u64,
        max_connections: Option<usize>,
        max_total_bytes: u64,
        share_guest_memory: bool,
        hold: Duration,
    }

    fn is_own(&self, user: u32) -> bool {
        user == 0 || self.own_user == Some(user)
    }

    /// Whether a user's programs may connect to ports of the guest.
    pub(super) fn may_connect(&self, user: u32) -> bool {
        self.is_own(user) || self.allow.contains(&user)
    }

    /// Whether a user's programs may take this port of the host.
    pub(super) fn may_listen(&self, user: u32, port: u32) -> bool {
        let covers = |l: &MapListen| l.ports.is_empty() || l.ports.iter().any(|p| p.contains(&port));
        self.is_own(user) || self.listen.iter().any(|l| l.user == user && covers(l))
    }

    /// Whether there is anything that a user's programs may.
    pub(super) fn knows(&self, user: u32) -> bool {
        self.may_connect(user) || self.listen.iter().any(|l| l.user == user)
    }
}
