//! A capture has the frames that the guest sends and gets, each once, on every kind of port.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::support::frames::{self, frame, number, tcp_frame};
use crate::support::{
    Backend, PATIENCE, Peer, Vm, in_netns, options, peer_header, tso, wait_until, with_metadata,
};
use zerowire_capture::{Capture, CaptureOptions, CaptureTarget, MAX_SNAPLEN};
use zerowire_guest::net::{Layout, NetOptions, RxMode, RxOptions, VirtioNetHdr};
use zerowire_testkit::captures::{CaptureFile, read_file};
use zerowire_testkit::net::run;
use zerowire_testkit::net::veth::veth;

/// A capture into a folder of its own.
struct Captured {
    capture: Arc<Capture>,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Captured {
    fn start(snaplen: u32) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("capture");
        let target = CaptureTarget::File(path.clone());
        let options = CaptureOptions::new(target).snaplen(snaplen);
        let capture = Arc::new(Capture::start(&options, "a test").unwrap_or_else(|e| panic!("{e}")));
        Self { capture, path, _dir: dir }
    }

    fn backend(&self, vm: Vm) -> Backend {
        Backend::captured(&[vm], Some(self.capture.clone()))
    }

    /// What it has when the back end is gone.
    fn read(self, backend: Backend) -> CaptureFile {
        drop(backend);
        assert!(self.capture.finish(PATIENCE));
        read_file(&self.path)
    }
}

/// Whether a frame is a test's, neither a probe nor a report of the kernel's own (IGMP).
fn is_wanted(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x88, 0xb5] => number(frame) < frames::PROBE,
        [8, 0] => frame[23] != 2,
        _ => true,
    }
}

/// The frames of one direction.
fn frames_of(file: &CaptureFile, direction: u32) -> Vec<&[u8]> {
    let of = file.packets.iter().filter(|p| p.direction == direction).map(|p| &p.bytes[..]);
    of.filter(|frame| is_wanted(frame)).collect()
}

/// 1 toward the guest's interface, 2 from it.
const TO_GUEST: u32 = 1;
const FROM_GUEST: u32 = 2;

#[test]
fn all_ports_show_what_the_guest_sends_and_gets() {
    for port in [
        "tap:zwcapt",
        "packet:v0,receive=socket",
        "packet:v0,rings=on,receive=ring",
        "xdp:v0,mode=copy",
        "xdp:v0,mode=copy,pin=off",
    ] {
        in_netns(move || {
            let peers = if port.starts_with("tap") { "zwcapt" } else { "v1" };
            if peers == "v1" {
                veth("v0", "v1", 1, 1500);
            }
            let captured = Captured::start(MAX_SNAPLEN);
            let backend = captured.backend(Vm::on("a", port));
            let mut peer = Peer::new(peers);
            let mut guest = backend.guest("a", &options(0, Layout::Split));
            guest.warm_up(0, &peer);
            let mut want = [Vec::new(), Vec::new()];
            // Short ones are copied, long ones lie in the guest's memory.
            for (n, len) in [60, 100, 1000, 1400, 1514, 64, 1514].into_iter().enumerate() {
                let out = frame(n as u32, len);
                guest.send_plain(std::slice::from_ref(&out));
                assert_eq!(peer.expect().bytes, out, "{port}");
                want[0].push(out);
                let back = frame(1000 + n as u32, len);
                peer.send(&back);
                assert_eq!(guest.expect().1, back, "{port}");
                want[1].push(back);
            }
            drop(guest);
            let stats = backend.stats("a").port_state.capture.expect("counts of the capture");
            assert_eq!(stats.lost, 0);
            let file = captured.read(backend);
            assert_eq!(frames_of(&file, FROM_GUEST), want[0], "{port}");
            assert_eq!(frames_of(&file, TO_GUEST), want[1], "{port}");
            assert!(stats.captured <= file.packets.len() as u64);
            assert_eq!(file.interfaces.len(), 1);
            assert_eq!(file.interfaces[0].name, "a");
            assert!(file.interfaces[0].description.starts_with(port.split(',').next().expect("a port")));
            // A frame and its answer come in the order in which they were there.
            let wanted = file.packets.iter().filter(|p| is_wanted(&p.bytes));
            let ways: Vec<_> = wanted.map(|p| p.direction).collect();
            assert_eq!(ways, [FROM_GUEST, TO_GUEST].repeat(7), "{port}");
        });
    }
}

/// Frames longer than a buffer, in chains of their own, and in buffers that are merged.
#[test]
fn frames_over_several_buffers_are_whole() {
    in_netns(|| {
        for mode in
            [RxMode::Mergeable { buffer_len: 1536 }, RxMode::Big { descriptors: 17, header_apart: false }]
        {
            let captured = Captured::start(MAX_SNAPLEN);
            let backend = captured.backend(Vm::new("zwcaplong"));
            let peer = Peer::new("zwcaplong");
            let rx = RxOptions { mode, indirect: true, buffers: 0 };
            let options = NetOptions { rx: Some(rx), ..options(0, Layout::Segments(16)) };
            let mut guest = backend.guest("zwcaplong", &options);
            let mut back = Vec::new();
            for n in 0..30 {
                let long = tcp_frame(n, 30_000);
                peer.send_with(&peer_header(VirtioNetHdr { gso_size: 1400, ..tso() }), &long).expect("sent");
                back.push(long);
            }
            for want in &back {
                assert_eq!(guest.expect().1, *want, "{mode:?}");
            }
            // Toward the port: one frame of which segments are made behind it.
            let out = tcp_frame(99, 60_000);
            guest.send(0, &[(tso(), out.clone())]);
            drop(guest);
            let file = captured.read(backend);
            assert_eq!(frames_of(&file, TO_GUEST), back, "{mode:?}");
            assert_eq!(frames_of(&file, FROM_GUEST), [out], "{mode:?}");
        }
    });
}

/// Frames that a full interface does not take go back to the ring and come again: they are in the
/// capture once.
#[test]
fn frames_that_wait_for_the_interface_are_captured_once() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let queue = ["root", "tbf", "rate", "100mbit", "burst", "3000", "limit", "40000000"];
        run("tc", &[&["qdisc", "add", "dev", "v0"][..], &queue].concat());
        for port in ["packet:v0,receive=socket", "packet:v0,rings=on"] {
            let captured = Captured::start(64);
            let backend = captured.backend(Vm::on("a", port));
            let options = NetOptions { tx_slots: 256, ..options(0, Layout::Single) };
            let mut guest = backend.guest("a", &options);
            let all: Vec<_> = (0..5000).map(|n| frame(n, 1500)).collect();
            guest.send_plain(&all);
            drop(guest);
            let file = captured.read(backend);
            assert_eq!(file.counts[0].2, 0, "none is lost to the capture");
            let got: Vec<_> = frames_of(&file, FROM_GUEST).into_iter().map(number).collect();
            assert!(got == (0..5000).collect::<Vec<_>>(), "{port}: {} frames", got.len());
            assert!(file.packets.iter().all(|p| p.bytes.len() == 64 && p.len == 1500));
        }
    });
}

/// What the metadata service takes out of the way is the guest's traffic as well.
#[test]
fn frames_of_the_metadata_service_are_captured() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let captured = Captured::start(MAX_SNAPLEN);
        let backend = captured.backend(with_metadata(Vm::new("zwcapmeta"), dir.path()));
        let mut guest = backend.guest("zwcapmeta", &options(0, Layout::Single));
        let request = frames::arp_request();
        guest.send_plain(std::slice::from_ref(&request));
        let answer = guest.expect().1;
        drop(guest);
        let file = captured.read(backend);
        assert_eq!(frames_of(&file, FROM_GUEST), [request]);
        assert_eq!(frames_of(&file, TO_GUEST), [answer]);
    });
}

/// A capture that has ended holds up nobody.
#[test]
fn a_guest_goes_on_when_its_capture_has_ended() {
    in_netns(|| {
        let captured = Captured::start(MAX_SNAPLEN);
        let backend = captured.backend(Vm::new("zwcapend"));
        let mut peer = Peer::new("zwcapend");
        let mut guest = backend.guest("zwcapend", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
        let counts = || {
            let stats = backend.stats("zwcapend").port_state.capture.expect("counts");
            (stats.captured, stats.lost)
        };
        // A packet is counted behind the guest's buffer.
        wait_until("both are captured", || counts().0 == 2);
        assert!(captured.capture.finish(Duration::from_secs(10)));
        for n in 2..50 {
            guest.ping(&mut peer, n);
        }
        wait_until("all are counted", || counts().1 >= 96);
        assert_eq!(counts(), (2, 96));
        assert_eq!(read_file(&captured.path).packets.len(), 2);
    });
}
