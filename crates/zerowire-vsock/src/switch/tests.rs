use std::path::Path;
use std::sync::Arc;

use zerowire_vhost::serve::SocketAccess;
use zerowire_wire::mapped::MapOptions;

use super::*;
use crate::VsockLimits;
use crate::connector::{HostConnector, OwnSockets, PathConnector};
use crate::doors::{HostSide, HostSockets};
use crate::mapped::{MapClient, MapPolicy, Stage};
use crate::packet::Kind;

/// A VM that nobody else has joined.
fn vm(dir: &Path, cid: u64) -> GroupVm {
    let uds = dir.join(cid.to_string());
    let sockets = HostSockets::bind(&uds, &SocketAccess::default()).expect("sockets");
    let connector = HostConnector::Paths(PathConnector::new(&uds, OwnSockets::default()));
    let host = HostSide { sockets, connector, map_policy: MapPolicy::default() };
    GroupVm::new("vm", cid, host, Vec::new(), VsockLimits::default(), Arc::default())
}

/// The next one may come before the end of the one before is noticed.
#[test]
fn a_program_that_has_left_has_no_port() {
    // A child that another test starts has the sockets until it calls execve(2).
    zerowire_testkit::own_process!();
    let dir = tempfile::tempdir().expect("a folder");
    let mut vm = vm(dir.path(), 3);
    let options = MapOptions::default();
    let mut there = Vec::new();
    for port in [9, 10] {
        let (ours, theirs) = mapped::pair(Kind::SeqPacket).expect("a pair");
        let stage = Stage::Listening { port, kind: Kind::Stream, options };
        vm.doors.map_clients.push(Some(MapClient { socket: ours, user: 0, stage, tenant: port }));
        there.push(theirs);
    }
    drop(there.remove(0));
    [9, 10].iter().for_each(|port| vm.doors.forget_who_left(*port));
    assert_eq!([9, 10].map(|port| vm.doors.map_listener_at(port, Kind::Stream)), [None, Some(1)]);
}

#[test]
fn others_are_all_vms_but_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut switch = Switch::new(Watch::new().expect("epoll"));
    for (place, cid) in [3, 4, 5].into_iter().enumerate() {
        switch.join(place, vm(dir.path(), cid)).expect("watched");
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
