//! Netlink against the kernel: interfaces of a namespace of the test's own. Run as root.

use std::collections::HashSet;
use std::process::Command;

use zerowire_sys::netlink::{Ethtool, LinkInfo, Netdev, QueueUser, XdpAttached};
use zerowire_sys::xdp::program::{Hook, Steering};
use zerowire_sys::xdp::{Interface, Socket, SocketOptions, Umem, UmemOptions};
use zerowire_testkit::net::lab::{HERE, in_lab};
use zerowire_testkit::net::run;
use zerowire_testkit::own_process;

/// A veth pair with three receive queues on this end.
fn three_queues() {
    run(
        "ip",
        &[
            "link",
            "add",
            HERE,
            "numrxqueues",
            "3",
            "numtxqueues",
            "3",
            "type",
            "veth",
            "peer",
            "name",
            "other0",
        ],
    );
    run("ip", &["link", "set", HERE, "up"]);
    run("ip", &["link", "set", "other0", "up"]);
}

#[test]
fn a_link_is_found_by_its_name() {
    in_lab(|_| {
        run("ip", &["link", "add", HERE, "mtu", "1400", "type", "veth", "peer", "name", "other0"]);
        let link = LinkInfo::find(HERE).expect("found");
        assert_eq!((link.name.as_str(), link.mtu, link.kind.as_deref()), (HERE, Some(1400), Some("veth")));
        assert!(!link.is_up && link.parent.is_none() && link.xdp.is_none() && link.rx_queues.is_some());
        run("ip", &["link", "set", HERE, "up"]);
        let link = LinkInfo::find(HERE).expect("found");
        assert!(link.is_up && !link.is_running, "the other end is down");
        assert!(LinkInfo::find("lo").expect("found").is_up);
        assert_eq!(LinkInfo::find("nowhere0").expect_err("none").errno(), Some(libc::ENODEV));
    });
}

#[test]
fn an_interface_that_is_being_renamed_is_not_gone() {
    in_lab(|_| {
        three_queues();
        let interface = Interface::open(HERE).expect("found");
        let names = [HERE, "moved0"];
        for n in 0..20 {
            let (from, to) = (names[n % 2], names[(n + 1) % 2]);
            let mut renaming =
                Command::new("ip").args(["link", "set", from, "name", to]).spawn().expect("ip");
            let done = loop {
                assert!(interface.up_and_running().expect("it is there").0);
                if let Some(done) = renaming.try_wait().expect("a child") {
                    break done;
                }
            };
            assert!(done.success(), "{from} to {to}");
        }
    });
}

#[test]
fn a_program_on_a_link_is_seen_and_gone_with_it() {
    own_process!();
    in_lab(|_| {
        three_queues();
        for (hook, place) in [(Hook::Generic, XdpAttached::Stack), (Hook::Native, XdpAttached::Driver)] {
            let steering = Steering::attach(HERE, 1, hook).unwrap_or_else(|e| panic!("{e}"));
            let xdp = LinkInfo::find(HERE).expect("found").xdp;
            assert!(matches!(xdp, Some((p, Some(_))) if p == place), "{xdp:?}");
            drop(steering);
            assert_eq!(LinkInfo::find(HERE).expect("found").xdp, None);
        }
    });
}

#[test]
fn channels_and_features_of_a_veth() {
    in_lab(|_| {
        three_queues();
        let index = LinkInfo::find(HERE).expect("found").index;
        let mut ethtool = Ethtool::open().expect("the family");
        let channels = ethtool.channels(index).expect("told");
        assert_eq!((channels.receive_queues(), channels.receive_queues_max()), (3, 3));
        let features = ethtool.features(index).expect("told");
        assert!(features.active.iter().any(|f| f.starts_with("tx-")), "{features:?}");
        assert!(!features.active.iter().any(|f| f == "rx-ntuple-filter"), "{features:?}");
        // What a driver doesn't tell is an error, not a guess; the socket goes on.
        match ethtool.rings(index) {
            Ok(rings) => assert_eq!(rings.data_split, None),
            Err(e) => assert_eq!(e.errno(), Some(libc::EOPNOTSUPP), "{e}"),
        }
        assert_eq!(ethtool.rss(index).expect_err("veth has none").errno(), Some(libc::EOPNOTSUPP));
        assert_eq!(ethtool.channels(1 << 30).expect_err("none").errno(), Some(libc::ENODEV));
        assert_eq!(ethtool.channels(index).expect("told"), channels);
    });
}

#[test]
fn queues_and_who_uses_them() {
    in_lab(|_| {
        three_queues();
        let index = LinkInfo::find(HERE).expect("found").index;
        let mut netdev = Netdev::open().expect("the family");
        let queues = netdev.queues(index).expect("a list");
        assert_eq!(queues.iter().map(|q| q.id).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(queues.iter().all(|q| q.user.is_none()));
        assert_eq!(netdev.queue(index, 3).expect_err("none").errno(), Some(libc::EINVAL));

        let umem = Umem::new(64 * 4096, UmemOptions::default(), false).expect("registered");
        let options = SocketOptions { queue: 1, ..SocketOptions::new(HERE) };
        let socket = Socket::bind(&umem, &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(netdev.queue(index, 1).expect("told").user, Some(QueueUser::AfXdp));
        assert_eq!(netdev.queue(index, 0).expect("told").user, None);
        drop(socket);

        run("ip", &["link", "set", HERE, "down"]);
        assert_eq!(netdev.queue(index, 0).expect_err("down").errno(), Some(libc::ENOENT));
        assert_eq!(netdev.queues(index).expect("a list"), []);
        netdev.device(index).expect("told, up or down");
        assert_eq!(netdev.device(1 << 30).expect_err("none").errno(), Some(libc::ENODEV));
    });
}

/// A list of many parts arrives whole.
#[test]
fn many_queues_come_in_several_datagrams() {
    in_lab(|_| {
        let new = ["link", "add", HERE, "numrxqueues", "1500", "numtxqueues", "1500", "type", "veth"];
        run("ip", &[&new[..], &["peer", "name", "other0"]].concat());
        run("ip", &["link", "set", HERE, "up"]);
        let index = LinkInfo::find(HERE).expect("found").index;
        let in_use = Ethtool::open().expect("the family").channels(index).expect("told").receive_queues();
        assert!(in_use >= 1000, "{in_use}");
        let queues = Netdev::open().expect("the family").queues(index).expect("a list");
        let numbers: HashSet<_> = queues.iter().map(|q| q.id).collect();
        assert_eq!((queues.len(), numbers.len()), (in_use as usize, in_use as usize));
    });
}
