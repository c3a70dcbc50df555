//! A VM of a vsock server, and its sockets.

use std::os::unix::net::UnixListener;
use std::path::Path;

use zerowire_vhost::serve::Endpoint;
use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::{HandedVsock, HostSockets, Limits, VsockConfig, VsockLimits};

/// A VM of a [`VsockBackend`](super::VsockBackend).
#[derive(Clone, Debug)]
pub struct Vm {
    /// Its name.
    pub name: &'static str,
    /// The guest's address.
    pub cid: u64,
    /// VMs that share one of these reach each other.
    pub groups: &'static [&'static str],
    /// Bounds of the device.
    pub limits: VsockLimits,
    /// What it may send and receive in a second.
    pub rates: Limits,
    /// Who may map receive buffers.
    pub map: MapPolicy,
}

impl Vm {
    /// In the default group, with the default limits.
    pub fn new(name: &'static str, cid: u64) -> Self {
        let (limits, rates, map) = (VsockLimits::default(), Limits::default(), MapPolicy::default());
        Self { name, cid, groups: &[], limits, rates, map }
    }

    /// With `buffer_bytes` bytes of credit for the guest.
    pub fn buffer(self, buffer_bytes: u32) -> Self {
        Self { limits: self.limits.buffer_bytes(buffer_bytes), ..self }
    }

    /// Programs may read the guest's memory.
    pub fn shared(self) -> Self {
        Self { map: self.map.share_guest_memory(true), ..self }
    }

    /// With at most `max_connections` connections.
    pub fn most(self, max_connections: usize) -> Self {
        Self { limits: self.limits.max_connections(max_connections), ..self }
    }

    /// With at most `request_rate` connection requests a second.
    pub fn request_rate(self, request_rate: u32) -> Self {
        Self { limits: self.limits.request_rate(request_rate), ..self }
    }

    /// In these groups.
    pub fn groups(self, groups: &'static [&'static str]) -> Self {
        Self { groups, ..self }
    }
}

/// Its configuration, with its sockets in this directory.
pub(super) fn config(dir: &Path, vm: &Vm) -> VsockConfig {
    VsockConfig::new(
        vm.name,
        Endpoint::Path(dir.join(format!("{}.vhost", vm.name))),
        vm.cid,
        dir.join(vm.name),
    )
    .groups(vm.groups.iter().map(|g| (*g).to_owned()).collect())
    .limits(vm.limits)
    .rates(vm.rates)
    .map(vm.map.clone())
}

/// A VM's sockets, as another process has opened them, and those of its end on the host.
pub(super) fn handed(config: VsockConfig, number: usize) -> ((VsockConfig, HandedVsock), HostSockets) {
    let own = HostSockets::bind(&config.uds, &config.uds_access).unwrap_or_else(|e| panic!("{e}"));
    let fds = own.fds().map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
    let listener = UnixListener::bind(config.endpoint.to_string()).expect("a socket");
    listener.set_nonblocking(true).expect("non-blocking");
    let sockets = HostSockets::handed(fds);
    let (capture, names, sessions, session) = (None, None, None, None);
    let handed = HandedVsock { number, listener, sockets, capture, names, sessions, session, drains: false };
    ((config, handed), own)
}
