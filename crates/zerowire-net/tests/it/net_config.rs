//! The configuration space of a network device, for front ends that ask the back end for it: by the
//! crate vhost, which cloud-hypervisor uses.

use crate::support::{Backend, Guest, Peer, Vm, in_netns, options, wait_until};
use vhost::VhostBackend;
use vhost::vhost_user::message::{
    VhostUserConfigFlags as Flags, VhostUserHeaderFlag, VhostUserProtocolFeatures as Protocol,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use zerowire_guest::net::Layout;
use zerowire_guest::{Transport, features as f, protocol as p};

const MAC: &str = "52:54:00:77:00:05";

fn connect(backend: &Backend, vm: &str) -> (Frontend, u64) {
    let mut vu = Frontend::connect(backend.socket(vm), 4).expect("a connection");
    vu.set_owner().expect("SET_OWNER");
    let features = vu.get_features().expect("features");
    let offered = vu.get_protocol_features().expect("protocol features");
    vu.set_protocol_features(
        offered & (Protocol::CONFIG | Protocol::REPLY_ACK | Protocol::MQ | Protocol::MTU),
    )
    .expect("protocol features");
    vu.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    (vu, features)
}

fn ask(vu: &mut Frontend, offset: u32, len: u32) -> Vec<u8> {
    vu.get_config(offset, len, Flags::empty(), &vec![0; len as usize]).expect("GET_CONFIG").1
}

#[test]
fn a_front_end_that_asks_gets_the_address_the_pairs_and_the_mtu() {
    in_netns(|| {
        let backend = Backend::start(&[Vm { mac: Some(MAC), queues: 2, ..Vm::new("zwcfg") }]);
        crate::support::ip(&["link", "set", "zwcfg", "mtu", "4000"]);
        let (mut vu, features) = connect(&backend, "zwcfg");
        assert_eq!(features & (f::NET_MAC | f::NET_MTU | f::NET_MQ), f::NET_MAC | f::NET_MTU | f::NET_MQ);
        let space = ask(&mut vu, 0, 24);
        let head = [0x52, 0x54, 0, 0x77, 0, 5, 1, 0, 2, 0, 0xa0, 0x0f];
        assert_eq!(space[..12], head, "address, link up, two pairs, MTU 4000");
        assert_eq!(ask(&mut vu, 10, 2), head[10..]);
    });
}

#[test]
fn nothing_of_it_can_be_written() {
    in_netns(|| {
        let backend = Backend::start(&[Vm { mac: Some(MAC), ..Vm::new("zwcfgw") }]);
        let (mut vu, _) = connect(&backend, "zwcfgw");
        assert!(vu.set_config(0, Flags::WRITABLE, &[2, 0, 0, 0, 0, 9]).is_err());
        let text = backend.stats("zwcfgw").last_error.unwrap_or_default();
        assert!(text.contains("SET_CONFIG") && text.contains("read-only"), "{text}");
        assert_eq!(ask(&mut vu, 0, 2), [0x52, 0x54]);
    });
}

/// QEMU warns of a back end of a network device with CONFIG.
#[test]
fn a_device_without_an_address_does_not_offer_it() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwcfgn"), Vm { mac: Some(MAC), ..Vm::new("zwcfgy") }]);
        for (vm, on) in [("zwcfgn", false), ("zwcfgy", true)] {
            let mut front = backend.connect(vm);
            assert_eq!(front.protocol() & p::CONFIG != 0, on, "{vm}");
            assert_eq!(front.device_features().expect("features") & f::NET_MAC != 0, on, "{vm}");
            // The rest is as ever.
            let mut guest = Guest::start(front, &options(0, Layout::Split));
            guest.ping(&mut Peer::new(vm), 1);
            drop(guest);
            wait_until("the front end is gone", || !backend.stats(vm).connected);
        }
    });
}

#[test]
fn the_mtu_is_what_the_front_end_has_said() {
    in_netns(|| {
        let backend = Backend::start(&[Vm { mac: Some(MAC), ..Vm::new("zwcfgm") }]);
        let mut front = backend.connect("zwcfgm");
        front.set_mtu(9000).expect("NET_SET_MTU");
        assert_eq!(front.config(10, 2).expect("the MTU"), 9000u16.to_le_bytes());
        // What lies beyond the end is answered by an error, and the connection goes on.
        front.config(20, 8).expect_err("24 bytes");
        assert_eq!(front.config(22, 2).expect("the end"), [0, 0]);
    });
}
