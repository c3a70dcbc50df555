//! What `zerowire replay` refuses: with the packet number and the remedy, before anything is sent.

use std::io::Write;

use crate::support::replay::captures::{interface, pcap_header, plain, section, simple, tcp4};
use crate::support::replay::*;
use zerowire_testkit::net::ip;

#[test]
fn captures_that_can_t_be_sent_are_refused_before_the_first_frame() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let f = frames(3);
        let good = [P::at(0, &f[0]), P::at(1, &f[1])];
        let with = |p: P| simple(&[&good[..], &[p]].concat());

        refused(b"", &[], &["is empty"]);
        refused(b"#!/bin/sh\n", &[], &["no capture", "23212f62"]);
        refused(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0], &[], &["zstdcat"]);
        let mut cut = with(P::at(2, &f[2]));
        cut.truncate(cut.len() - 10);
        refused(&cut, &[], &["inside packet 3", "the 2 packets before", "--ignore-truncated"]);
        refused(&cut, &["--max-memory", "1"], &["inside packet 3"]);
        refused(&with(P::at(2, &[])), &[], &["packet 3", "no bytes", "--short skip"]);
        refused(&with(P::at(2, &[7; 13])), &[], &["packet 3", "13 bytes"]);
        refused(&with(P::at(2, &lab::frame(0, 1515))), &[], &["packet 3", "1515", "1514 (MTU 1500)", "gso"]);
        refused(&with(P::at(2, &lab::frame(0, 1515))), &["--oversized", "gso"], &["packet 3", "88b5"]);
        refused(&with(P { wire: 99, ..P::at(2, &f[2][..60]) }), &[], &["packet 3", "60 of its 99", "--pad"]);
        refused(&with(P::at(0, &f[2])), &[], &["packet 3", "1 ns before", "--backwards send"]);
        refused(&pcap_header(Order::Little, false, 101), &[], &["101", "RAW", "tcprewrite"]);
        refused(&pcap_header(Order::Little, false, 113), &[], &["113", "LINUX_SLL", "'any'"]);
        refused(&simple(&[]), &[], &["nothing to send", "no packets"]);
        refused(&simple(&[P::at(0, &[])]), &["--short", "skip"], &["all of its 1 packets", "1 short"]);
        let order = Order::Big;
        let ng =
            [section(order), interface(order, 1, 0, &[]), plain(order, &f[0], f[0].len() as u32)].concat();
        refused(&ng, &[], &["packet 1", "no time", "--topspeed"]);
        let mut long = with(P::at(2, &f[2]));
        let at = 24 + 32 + f[0].len() + f[1].len() + 8;
        long[at..at + 4].copy_from_slice(&[0xff; 4]);
        refused(&long, &[], &["packet 3", "4294967295", "262144"]);
        assert_eq!(peer.rest(), Vec::<Vec<u8>>::new(), "nothing was sent");

        // Times that go back do no harm where they are not needed, or where an option passes them
        // over.
        for more in [&["-t"][..], &["--pps", "10000"], &["--backwards", "send"]] {
            assert_eq!(sent(&with(P::at(0, &f[2])), more)["frames"], 3);
        }
    });
}

#[test]
fn interfaces_options_and_rights_are_checked() {
    in_lab(|lab| {
        lab.veth();
        let file = write(&capture(&frames(2), 0));
        let path = file.path().to_str().expect("a path");
        run(&["-i", "none0", path]).refused(&["none0", "'ip link' lists"]);
        run(&["-i", "sixteen-bytes-xx", path]).refused(&["1 to 15 bytes"]);
        ip(&["link", "add", "zwoff", "type", "ifb"]);
        run(&["-i", "zwoff", path]).refused(&["zwoff is down", "ip link set zwoff up"]);
        ip(&["tuntap", "add", "zwtun", "mode", "tun"]);
        ip(&["link", "set", "zwtun", "up"]);
        run(&["-i", "zwtun", path]).refused(&["zwtun is of type 65534", "not Ethernet"]);
        run(&["-i", HERE, "/nowhere/x.pcap"]).refused(&["/nowhere/x.pcap", "No such file"]);
        run(&["-i", HERE, "/"]).refused(&["reading failed", "Is a directory"]);
        run(&["-i", HERE, "--mss", "900", path]).ended(2, &["--mss", "--oversized gso"]);
        run(&["-i", HERE, "--port", "xdp", "--queue", "77", path]).refused(&["queue 77"]);
        run(&["-i", HERE, "--queue", "0", path]).ended(2, &["--queue is for AF_XDP", "--port xdp"]);
        let ran = run(&["-i", HERE, "-t", "-x", "2", path]);
        assert_eq!(ran.code, 2, "{ran:?}");
        for port in ["auto", "packet", "send"] {
            let ran = Replay::start(&["-i", HERE, "--port", port, path], Without::NetRaw).end();
            ran.refused(&["CAP_NET_RAW"]);
        }
        let gso = write(&simple(&[P::at(0, &tcp4(3000))]));
        let path = gso.path().to_str().expect("a path");
        run(&["-i", HERE, "--port", "xdp", "--oversized", "gso", path])
            .refused(&["AF_XDP has no segmentation"]);
        let mss = ["-i", HERE, "--oversized", "gso", "--mss", "1461", path];
        run(&mss).refused(&["packet 1", "--mss 1461", "MTU of 1500"]);
    });
}

#[test]
fn an_mtu_that_falls_on_the_way_names_the_options() {
    in_lab(|lab| {
        let file = write(&capture(&[lab::frame(0, 1400)], 0));
        let path = file.path().to_str().expect("a path");
        for port in ["packet", "send"] {
            lab.veth();
            let peer = lab.capture();
            let args = ["-q", "-i", HERE, "-p", "500", "--loop", "0", "--port", port, path];
            let replay = Replay::start(&args, Without::Nothing);
            peer.expect();
            ip(&["link", "set", HERE, "mtu", "1000"]);
            replay.end().ended(1, &["packet 1", "MTU 1000", "'--oversized gso'", "'--oversized skip'"]);
            lab.delete(HERE);
        }
    });
}

#[test]
fn a_long_pipe_can_t_be_sent_twice() {
    in_lab(|lab| {
        lab.veth();
        let args = ["-i", HERE, "-t", "-l", "2", "--max-memory", "1K", "-"];
        let mut replay = Replay::start(&args, Without::Nothing);
        // It may end before it has read all.
        let _ = replay.input.as_mut().expect("its input").write_all(&capture(&frames(50), 0));
        replay.end().refused(&["standard input", "only once", "--max-memory"]);
    });
}

#[test]
fn an_error_in_the_middle_of_a_pipe_comes_after_what_is_whole() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let f = frames(50);
        let mut file = capture(&f, 0);
        file.truncate(file.len() - 1);
        let args = ["-i", HERE, "-t", "--max-memory", "1K", "--json", "-", "-"];
        let mut replay = Replay::start(&args, Without::Nothing);
        replay.input.as_mut().expect("its input").write_all(&file).expect("written");
        let ran = replay.end();
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.log.contains("inside packet 50"), "{}", ran.log);
        arrive(&peer, &f[..49]);
        assert_eq!(ran.summary()["frames"], 49);
    });
}
