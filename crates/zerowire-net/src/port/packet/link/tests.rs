use std::process::Command;

use super::super::netns::in_netns;
use super::*;

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().expect("the program ip (iproute2)");
    assert!(done.success(), "ip {arguments}");
}

fn link() -> (Link, PortIo) {
    ip("link add v0 type veth peer name v1");
    ip("link set v0 up");
    ip("link set v1 up");
    let (link, io) = Link::open("v0", None, PacketReceive::Auto, None).expect("a link");
    assert!(link.is_up());
    (link, io)
}

#[test]
fn a_link_is_up_only_with_both_sockets() {
    in_netns(|| {
        let (mut link, io) = link();
        for of in [true, false] {
            let socket = |link: &Link| (if of { &link.tagged } else { &link.untagged }).state();
            // Binding it failed, for once.
            if of { &link.tagged } else { &link.untagged }.unbind();
            link.look();
            assert_eq!((link.is_up(), socket(&link)), (true, InterfaceState::Up));
            // And as long as it fails the link is not up, whatever the other one says.
            ip("link set v0 down");
            ip("link set v0 name other");
            ip("link set other up");
            if of { &link.tagged } else { &link.untagged }.unbind();
            link.look();
            assert!(!link.is_up());
            let text = link.describe(&io);
            assert!(text.contains("no interface v0"), "{text}");
            ip("link set other down");
            ip("link set other name v0");
            ip("link set v0 up");
            link.look();
            assert_eq!((link.is_up(), socket(&link)), (true, InterfaceState::Up));
        }
    });
}

#[test]
fn a_link_follows_a_new_name() {
    in_netns(|| {
        let (mut link, _io) = link();
        assert_eq!(link.name(), "v0");
        ip("link set v0 down");
        ip("link set v0 name other");
        link.look();
        assert_eq!((link.name().as_str(), link.state), ("other", InterfaceState::Down));
        ip("link del other");
        link.look();
        assert_eq!((link.name().as_str(), link.state), ("v0", InterfaceState::Gone));
    });
}
