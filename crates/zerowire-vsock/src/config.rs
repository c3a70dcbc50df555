//! The configuration of a VM's vsock device, and which configurations make no sense together.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use zerowire_vhost::limit::Limits;
use zerowire_vhost::serve::{Endpoint, Paths, RosterConfig, SocketAccess, StartError, check_names, normal};

use crate::VsockLimits;
use crate::connector::with_suffix;
use crate::doors::Door;
use crate::error::VsockServerError;
use crate::mapped::MapPolicy;

/// The group of a VM that names none.
pub const DEFAULT_GROUP: &str = "default";

/// CIDs that a guest can have: 0 to 2 and the largest one have other meanings (virtio 1.3 §5.10.4,
/// linux/vm_sockets.h).
const CIDS: std::ops::RangeInclusive<u64> = 3..=0xffff_fffe;

/// Sizes that [`VsockLimits::buffer_bytes`] can have.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=16 << 20;

/// Values that [`VsockLimits::max_connections`] can have.
const CONNECTIONS: std::ops::RangeInclusive<usize> = 1..=65536;

/// The most that [`VsockLimits::request_rate`] can be.
const MAX_REQUEST_RATE: u32 = 1_000_000;

/// Values that [`MapPolicy::max_bytes`] can have.
const MAP_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=4 << 30;

/// Values that [`MapPolicy::max_total_bytes`] can have.
const MAP_TOTAL_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 40;

/// Values that [`MapPolicy::hold`] can have. A minute is longer than any driver waits for its
/// descriptors.
const MAP_HOLD: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);

/// Which bound of a device is none that it can have, and the option for it.
fn wrong_limit(limits: &VsockLimits) -> Option<String> {
    let &VsockLimits { buffer_bytes, max_connections, peer_connections, sibling_connections, request_rate } =
        limits;
    if !BUFFER_BYTES.contains(&buffer_bytes) {
        let (least, most) = BUFFER_BYTES.into_inner();
        return Some(format!("a buffer of {buffer_bytes} bytes: it must have {least} to {most} (--buffer)"));
    }
    if !CONNECTIONS.contains(&max_connections) {
        let (least, most) = CONNECTIONS.into_inner();
        return Some(format!(
            "{max_connections} connections: the bound must be {least} to {most} (--max-connections)"
        ));
    }
    for (what, most, flag) in [
        ("one other guest", peer_connections, "--peer-connections"),
        ("other guests", sibling_connections, "--sibling-connections"),
    ] {
        if let Some(most) = most.filter(|n| *n > max_connections) {
            return Some(format!(
                "{most} connections with {what}, of {max_connections} in all: the bound must be 0 to {max_connections} \
                 ({flag}, --max-connections)"
            ));
        }
    }
    (request_rate > MAX_REQUEST_RATE).then(|| {
        format!(
            "{request_rate} connection requests a second: the bound must be 1 to {MAX_REQUEST_RATE}, or 0 for none \
             (--request-rate)"
        )
    })
}

/// The same of mapped receive, for a device with `max_connections`.
fn wrong_map(map: &MapPolicy, max_connections: usize) -> Option<String> {
    if !MAP_BYTES.contains(&map.max_bytes) {
        let (least, most) = MAP_BYTES.into_inner();
        let asked = map.max_bytes;
        return Some(format!("{asked} bytes of windows: the bound must be {least} to {most} (--map-max)"));
    }
    if let Some(most) = map.max_connections.filter(|n| *n > max_connections) {
        return Some(format!(
            "{most} mapped connections, of {max_connections} in all: the bound must be 0 to {max_connections} \
             (--map-connections, --max-connections)"
        ));
    }
    if !MAP_TOTAL_BYTES.contains(&map.max_total_bytes) {
        let (least, most) = MAP_TOTAL_BYTES.into_inner();
        let asked = map.max_total_bytes;
        return Some(format!(
            "{asked} bytes of windows in all: the bound must be {least} to {most} (--map-total)"
        ));
    }
    (!MAP_HOLD.contains(&map.hold)).then(|| {
        let (least, most) = (MAP_HOLD.start().as_millis(), MAP_HOLD.end().as_millis());
        let asked = map.hold.as_secs_f64() * 1e3;
        format!("a hold time of {asked} ms: it must have {least} to {most} (--map-hold)")
    })
}

/// One VM with a vsock device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VsockConfig {
    /// A name for the log and the statistics.
    pub name: String,
    /// Where its front end connects.
    pub endpoint: Endpoint,
    /// Who may connect there, if the socket is made here.
    pub access: SocketAccess,
    /// The guest's address, 3 to 4294967294, another one for each VM.
    pub cid: u64,
    /// Where the host meets the guest. Host programs connect to this path (stream sockets) and to
    /// the path with `.seqpacket` behind it (message sockets). The guest's connections to the host
    /// go to the path with `_PORT` behind it.
    pub uds: PathBuf,
    /// Which programs may connect to these sockets, and to that of `map`.
    pub uds_access: SocketAccess,
    /// VMs that share a group reach each other; [`DEFAULT_GROUP`] where the list is empty.
    pub groups: Vec<String>,
    /// Bounds of the device.
    pub limits: VsockLimits,
    /// What it may send and receive in a second.
    pub rates: Limits,
    /// Who may map receive buffers, at the path with `.map` behind it.
    pub map: MapPolicy,
    /// The socket on which this process is managed: no guest may reach it.
    pub control: Option<PathBuf>,
}

impl VsockConfig {
    /// In the default group, with the default limits. Its sockets are this user's alone.
    pub fn new(name: impl Into<String>, endpoint: Endpoint, cid: u64, uds: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            endpoint,
            access: SocketAccess::default(),
            cid,
            uds: uds.into(),
            uds_access: SocketAccess::default(),
            groups: Vec::new(),
            limits: VsockLimits::default(),
            rates: Limits::default(),
            map: MapPolicy::default(),
            control: None,
        }
    }

    zerowire_wire::setters! {
        name: String,
        endpoint: Endpoint,
        access: SocketAccess,
        cid: u64,
        uds: PathBuf,
        uds_access: SocketAccess,
        groups: Vec<String>,
        limits: VsockLimits,
        rates: Limits,
        map: MapPolicy,
        control: Option<PathBuf>,
    }

    fn limit(&self, text: String) -> VsockServerError {
        StartError::Limit { vm: self.name.clone(), text }.into()
    }

    /// Checks what concerns no other VM.
    fn check(&self) -> Result<(), VsockServerError> {
        let why = match self.cid {
            cid if CIDS.contains(&cid) => None,
            0 | 1 => Some("is reserved"),
            2 => Some("is the host's"),
            0xffff_ffff => Some("means any CID (VMADDR_CID_ANY)"),
            _ => Some("has more than 32 bits"),
        };
        if let Some(why) = why {
            return Err(VsockServerError::Cid { vm: self.name.clone(), cid: self.cid, why });
        }
        if let Some(text) =
            wrong_limit(&self.limits).or_else(|| wrong_map(&self.map, self.limits.max_connections))
        {
            return Err(self.limit(text));
        }
        if self.groups.iter().any(String::is_empty) {
            let text = "a group without a name: give it one or leave it out (--groups)";
            return Err(self.limit(text.to_owned()));
        }
        Ok(())
    }

    /// Completes the groups, and the share of mapped connections of one of these VMs.
    pub(super) fn complete(&mut self, vms: usize) {
        self.map.complete(vms, self.limits.max_connections);
        self.groups.sort_unstable();
        self.groups.dedup();
        if self.groups.is_empty() {
            self.groups.push(DEFAULT_GROUP.to_owned());
        }
    }

    /// The paths on which the sockets of the host's end are made.
    pub(super) fn host_paths(&self) -> Vec<PathBuf> {
        Door::ALL.map(|door| with_suffix(&self.uds, door.suffix())).to_vec()
    }

    /// The paths of all its sockets: of those that are made, and of one that was handed over and
    /// taken.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths = self.host_paths();
        paths.extend(self.endpoint.path());
        paths
    }
}

impl RosterConfig for VsockConfig {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Checks each configuration and all together, and completes the groups and the shares of mapped
/// connections.
///
/// # Errors
/// Those of [`VsockServer::start`](crate::VsockServer::start) for configurations that can't work.
pub fn check_vms(configs: &mut [VsockConfig]) -> Result<(), VsockServerError> {
    let vms = configs.len();
    configs.iter_mut().for_each(|config| config.complete(vms));
    check(&configs.iter().collect::<Vec<_>>())
}

/// Checks each configuration, which is complete, and all together.
pub(super) fn check(configs: &[&VsockConfig]) -> Result<(), VsockServerError> {
    check_names(configs.iter().map(|c| c.name.as_str()))?;
    let (mut cids, mut paths) = (HashMap::new(), Paths::default());
    for c in configs {
        c.check()?;
        if let Some(other) = cids.insert(c.cid, c.name.clone()) {
            return Err(VsockServerError::CidTaken { vm: c.name.clone(), other, cid: c.cid });
        }
        for path in c.paths() {
            paths.claim(path, &c.name)?;
        }
    }
    check_ports(&paths, configs)?;
    for control in configs.iter().filter_map(|c| c.control.as_ref()) {
        check_control(control, &paths, configs)?;
    }
    Ok(())
}

/// Whether VMs can be beside each other.
pub(super) type VmsCheck = fn(&[&VsockConfig]) -> Result<(), VsockServerError>;

/// The process that has opened VMs has checked them. Their paths are those of its folder.
pub(super) fn checked(_: &[&VsockConfig]) -> Result<(), VsockServerError> {
    Ok(())
}

/// The VMs by their ends on the host.
fn by_end<'a>(configs: &[&'a VsockConfig]) -> HashMap<PathBuf, &'a String> {
    configs.iter().map(|c| (normal(&c.uds), &c.name)).collect()
}

/// Refuses the control socket on a VM's path, and where a guest's connections arrive: the guest
/// would manage this process.
fn check_control(control: &Path, paths: &Paths, configs: &[&VsockConfig]) -> Result<(), VsockServerError> {
    let path = normal(control);
    if let Some((_, vm)) = paths.iter().find(|(taken, _)| *taken == path) {
        return Err(VsockServerError::ControlTaken { vm: vm.to_owned(), path });
    }
    let ends = by_end(configs);
    match port_of(&path).and_then(|(uds, port)| Some((ends.get(&uds)?, port))) {
        None => Ok(()),
        Some((vm, port)) => Err(VsockServerError::ControlOfPort { vm: (*vm).clone(), port, path }),
    }
}

/// Refuses sockets at the path of a guest's port (`UDS_PORT`): the guest would reach them, whatever
/// its groups are.
fn check_ports(paths: &Paths, configs: &[&VsockConfig]) -> Result<(), VsockServerError> {
    let ends = by_end(configs);
    let found = paths.iter().filter_map(|(path, vm)| {
        let (uds, port) = port_of(path)?;
        Some((vm, path, *ends.get(&uds)?, port))
    });
    // The same one is named at each start.
    match found.min() {
        None => Ok(()),
        Some((vm, path, other, port)) => Err(VsockServerError::PathOfPort {
            vm: (*vm).to_owned(),
            other: (*other).clone(),
            port,
            path: path.to_path_buf(),
        }),
    }
}

/// Splits `UDS_PORT`, where the port is written as the device writes it.
fn port_of(path: &Path) -> Option<(PathBuf, u32)> {
    let bytes = path.as_os_str().as_bytes();
    let at = bytes.iter().rposition(|b| *b == b'_')?;
    let (uds, digits) = (&bytes[..at], std::str::from_utf8(&bytes[at + 1..]).ok()?);
    let port: u32 = digits.parse().ok()?;
    (port.to_string() == digits).then(|| (OsStr::from_bytes(uds).into(), port))
}

/// Which VMs share a thread: those that are connected by groups, also by way of other VMs. The VMs
/// of a set are in order, and so are the sets by their first VM.
pub fn group_sets<'a>(configs: impl Iterator<Item = &'a VsockConfig>) -> Vec<Vec<usize>> {
    components(&configs.map(|config| config.groups.as_slice()).collect::<Vec<_>>())
}

fn components(groups: &[&[String]]) -> Vec<Vec<usize>> {
    // The set of each VM, named by its first VM.
    let mut set: Vec<usize> = (0..groups.len()).collect();
    let mut of_group: HashMap<&str, usize> = HashMap::new();
    for (vm, names) in groups.iter().enumerate() {
        for name in *names {
            let first = *of_group.entry(name).or_insert(vm);
            let (a, b) = (set[first], set[vm]);
            let (to, from) = (a.min(b), a.max(b));
            set.iter_mut().filter(|s| **s == from).for_each(|s| *s = to);
        }
    }
    let mut sets = vec![Vec::new(); groups.len()];
    for (vm, first) in set.into_iter().enumerate() {
        sets[first].push(vm);
    }
    sets.retain(|s| !s.is_empty());
    sets
}

/// An order in which each VM finds the thread of those that it is connected with by groups, also by
/// way of others: behind the first of them, each shares a group with one before it. Groups in
/// `taken` have a thread already.
pub(super) fn connected_order(configs: &[VsockConfig], taken: &[String]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..configs.len()).collect();
    let (mut order, mut reached) = (Vec::new(), taken.iter().collect::<HashSet<_>>());
    while !left.is_empty() {
        let is_next = |vm: &usize| configs[*vm].groups.iter().any(|g| reached.contains(g));
        // Without one the first of another set is next.
        let vm = left.remove(left.iter().position(is_next).unwrap_or(0));
        reached.extend(&configs[vm].groups);
        order.push(vm);
    }
    order
}

#[cfg(test)]
mod tests;
