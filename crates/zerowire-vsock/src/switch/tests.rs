use std::sync::Arc;

use zerowire_vhost::serve::SocketAccess;

use super::*;
use crate::VsockLimits;
use crate::connector::{HostConnector, OwnSockets, PathConnector};
use crate::doors::{HostSide, HostSockets};
use crate::mapped::MapPolicy;
use crate::packet::Kind;

#[test]
fn others_are_all_vms_but_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let vm = |cid: u64| {
        let uds = dir.path().join(cid.to_string());
        let sockets = HostSockets::bind(&uds, &SocketAccess::default()).expect("sockets");
        let connector = HostConnector::Paths(PathConnector::new(&uds, OwnSockets::default()));
        let host = HostSide { sockets, connector, map_policy: MapPolicy::default() };
        GroupVm::new("vm", cid, host, Vec::new(), VsockLimits::default(), Arc::default())
    };
    let mut switch = Switch::new(Watch::new().expect("epoll"));
    for (place, cid) in [3, 4, 5].into_iter().enumerate() {
        switch.join(place, vm(cid)).expect("watched");
    }
    for v in 0..3 {
        let (vm, mut rest) = switch.at(v).expect("a VM");
        assert_eq!(vm.id.index, v);
        let others: Vec<_> = (0..3).filter(|o| *o != v).collect();
        assert!(rest.others.iter_mut().map(|vm| vm.id.index).eq(others.iter().copied()));
        for o in 0..5 {
            let other = rest.others.get(o).map(|vm| vm.id.index);
            assert_eq!(other, Some(o).filter(|o| others.contains(o)));
        }
    }
    assert!(switch.at(3).is_none());
}

/// A program that sends them gets EPERM. A kernel before Linux 6.16 does not know the option.
#[test]
fn a_program_with_mapped_receive_can_send_no_descriptors() {
    use zerowire_sys::socket::{SO_PASSRIGHTS, get_int};
    let takes = |socket: &std::os::fd::OwnedFd| get_int(socket, libc::SOL_SOCKET, SO_PASSRIGHTS).ok();
    for kind in [Kind::Stream, Kind::SeqPacket] {
        let (ours, _theirs) = mapped::pair(kind).expect("a pair");
        assert_ne!(takes(&ours), Some(1), "{kind:?}");
    }
}
