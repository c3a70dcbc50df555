//! What the log says of VMs that begin to be served.

use zerowire_vsock::{VsockConfig, VsockFleet};

/// Descriptors of the process: standard streams, signals, statistics.
const PROCESS_DESCRIPTORS: u64 = 16;

/// Descriptors of a VM: its sockets, its front end's, eventfds and memory.
const VM_DESCRIPTORS: u64 = 80;

/// Programs at a VM's sockets that have no connection: 128 that have not said where to, and 256 at
/// UDS.map. Those at UDS.map listen or are about to ask.
const WAITING_PROGRAMS: u64 = 384;

/// Descriptors of a mapped connection beside the one that each connection has.
const MAPPED_DESCRIPTORS: u64 = 2;

/// Says what runs for the VMs of these names, and whether all VMs may need more descriptors than
/// the hard limit allows.
pub(super) fn tell(server: &dyn VsockFleet, names: &[String], hard: Option<u64>) {
    let vms: Vec<_> = server.vms().into_iter().map(|vm| vm.config).collect();
    if let Some(warning) = hard.and_then(|hard| descriptor_warning(&vms, hard)) {
        tracing::warn!("{warning}");
    }
    for (name, line) in vms.iter().filter(|vm| names.contains(&vm.name)).map(start_line) {
        tracing::info!(vm = name, "{line}");
    }
}

/// The name of a VM, and what the log says of it at the start.
pub(super) fn start_line(vm: &VsockConfig) -> (String, String) {
    let uds = vm.uds.display();
    let line = format!(
        "listening on {}, CID {}, host end {uds} (messages: {uds}.seqpacket), groups {}; {} bytes of credit a \
         connection, at most {} connections, {} of them mapped; path: vectored system calls over guest memory",
        vm.endpoint,
        vm.cid,
        vm.groups.join(", "),
        vm.limits.buffer_bytes,
        vm.limits.max_connections,
        mapped_connections(vm)
    );
    (vm.name.clone(), line)
}

/// Mapped connections at most.
fn mapped_connections(vm: &VsockConfig) -> usize {
    vm.map.max_connections.unwrap_or(vm.limits.max_connections)
}

/// What all connections may take; None where that fits below `hard`.
pub(super) fn descriptor_warning(vms: &[VsockConfig], hard: u64) -> Option<String> {
    let connections: u64 = vms.iter().map(|v| v.limits.max_connections as u64).sum();
    let mapped: u64 = vms.iter().map(|v| mapped_connections(v) as u64).sum();
    let others = PROCESS_DESCRIPTORS + vms.len() as u64 * (VM_DESCRIPTORS + WAITING_PROGRAMS);
    let need = connections + MAPPED_DESCRIPTORS * mapped + others;
    (hard < need).then(|| {
        format!(
            "{connections} connections ({} VMs), {mapped} of them mapped, may need {need} open files, and the hard limit is \
             {hard}: connections past it are refused. Raise it ('ulimit -Hn {need}' as root, LimitNOFILE={need} in the \
             systemd unit, --ulimit nofile={need} for a container), or give a lower --max-connections or --map-connections",
            vms.len()
        )
    })
}
