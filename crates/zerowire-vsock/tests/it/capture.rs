//! A capture has the packets that guests send and get, as vsockmon of Linux shows them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::support::PATIENCE;
use crate::support::vsock::{Vm, VsockBackend, exchange, join, pattern, read_exact};
use zerowire_capture::{Capture, CaptureOptions, CaptureTarget, LINKTYPE_VSOCK, MAX_SNAPLEN};
use zerowire_guest::vsock::{ConnState, SocketType};
use zerowire_testkit::captures::{CaptureFile, CapturedPacket, read_file};
use zerowire_testkit::not_run;
use zerowire_wire::vsock::{Header, Op};
use zerowire_wire::vsockmon::PREFIX_BYTES;

/// Bytes of vsockmon's own header.
const OWN_BYTES: usize = 32;

/// Toward the guest's device, and from it.
const TO_GUEST: u32 = 1;
const FROM_GUEST: u32 = 2;

/// vsockmon's operations (linux/vsockmon.h).
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const CONTROL: u8 = 3;
const PAYLOAD: u8 = 4;

fn start(dir: &tempfile::TempDir, snaplen: u32) -> (PathBuf, Arc<Capture>) {
    let path = dir.path().join("capture");
    let options = CaptureOptions::new(CaptureTarget::File(path.clone())).snaplen(snaplen);
    (path, Arc::new(Capture::start(&options, "a test").unwrap_or_else(|e| panic!("{e}"))))
}

fn header(packet: &CapturedPacket) -> Header {
    Header::from_bytes(packet.bytes[OWN_BYTES..PREFIX_BYTES].try_into().expect("a header of virtio"))
}

/// What vsockmon says of a packet must be what its header says.
fn is_sound(packet: &CapturedPacket) {
    let (own, header) = (&packet.bytes[..OWN_BYTES], header(packet));
    assert_eq!(own[..8], header.src_cid.to_le_bytes());
    assert_eq!(own[8..16], header.dst_cid.to_le_bytes());
    assert_eq!(own[16..20], header.src_port.to_le_bytes());
    assert_eq!(own[20..24], header.dst_port.to_le_bytes());
    let operation = match header.op().expect("an operation") {
        Op::Request | Op::Response => CONNECT,
        Op::Rst | Op::Shutdown => DISCONNECT,
        Op::CreditUpdate | Op::CreditRequest => CONTROL,
        Op::Rw => PAYLOAD,
    };
    assert_eq!(own[24..], [operation, 0, 2, 0, 44, 0, 0, 0]);
    assert_eq!(packet.len as usize, PREFIX_BYTES + header.len as usize);
}

/// The operations of an interface, with their directions, but for those about credit.
fn operations(file: &CaptureFile, interface: u32) -> Vec<(u32, Op)> {
    let packets = file.packets.iter().filter(|p| p.interface == interface);
    let all = packets.map(|p| (p.direction, header(p).op().expect("an operation")));
    all.filter(|(_, op)| !matches!(op, Op::CreditUpdate | Op::CreditRequest)).collect()
}

/// The payload of one direction of an interface.
fn payload(file: &CaptureFile, interface: u32, direction: u32) -> Vec<u8> {
    let packets = file.packets.iter().filter(|p| (p.interface, p.direction) == (interface, direction));
    packets.flat_map(|p| p.bytes[PREFIX_BYTES..].to_vec()).collect()
}

/// Wireshark reads the same of each packet, where it is installed.
fn tshark_agrees(path: &Path, file: &CaptureFile) {
    let fields = ["vsock.src_cid", "vsock.dst_port", "vsock.op", "vsock.virtio.op", "vsock.virtio.len"];
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-r"]).arg(path).args(fields.iter().flat_map(|field| ["-e", *field]));
    let Ok(output) = command.output() else {
        not_run("a capture of vsock read by tshark: it is not installed (Debian: the package tshark)");
        return;
    };
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let want = file.packets.iter().map(|packet| {
        let h = header(packet);
        format!("{}\t{}\t{}\t{}\t{}", h.src_cid, h.dst_port, packet.bytes[24], h.op, h.len)
    });
    assert!(lines.lines().eq(want), "{lines}\n{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_connection_to_the_host_is_captured_from_begin_to_end() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, capture) = start(&dir, MAX_SNAPLEN);
    let backend = VsockBackend::captured(&[Vm::new("vm", 3)], Some(capture.clone()));
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    // Longer than a packet, and than what is copied at once.
    let (out, back) = (pattern(150_000, 1), pattern(100_001, 2));
    let mut writer = stream.try_clone().expect("a descriptor");
    let got = guest.both(|g| g.send(conn, &out), || read_exact(&mut stream, out.len())).1;
    assert!(got == out);
    let (got, ()) = guest.both(|g| g.recv(conn, back.len()), || writer.write_all(&back).expect("written"));
    assert!(got == back);
    drop((stream, writer));
    guest.until("the end", |stack| stack.state(conn) != ConnState::Established);
    drop(guest);
    let stats = backend.stats("vm").capture.expect("counts of the capture");
    assert_eq!(stats.lost, 0);
    drop(backend);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    let interface = &file.interfaces[0];
    assert_eq!((interface.link, &*interface.name, &*interface.description), (LINKTYPE_VSOCK, "vm", "CID 3"));
    file.packets.iter().for_each(is_sound);
    let operations = operations(&file, 0);
    assert_eq!(operations[..2], [(FROM_GUEST, Op::Request), (TO_GUEST, Op::Response)]);
    assert!(operations[2..].iter().any(|(_, op)| matches!(op, Op::Rst | Op::Shutdown)), "{operations:?}");
    tshark_agrees(&path, &file);
    assert!(payload(&file, 0, FROM_GUEST) == out, "what the guest sent");
    assert!(payload(&file, 0, TO_GUEST) == back, "what it got");
}

/// A packet from guest to guest is there twice: as one of each interface.
#[test]
fn guests_that_reach_each_other_have_an_interface_each() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, capture) = start(&dir, MAX_SNAPLEN);
    let backend = VsockBackend::captured(&[Vm::new("a", 3), Vm::new("b", 4)], Some(capture.clone()));
    let (mut a, mut b) = (backend.guest("a"), backend.guest("b"));
    let conns = join(&mut a, &mut b, 80, SocketType::Stream);
    let out = pattern(10_000, 1);
    exchange(&mut a, &mut b, conns, [&out, &[]]);
    drop((a, b));
    drop(backend);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    file.packets.iter().for_each(is_sound);
    assert_eq!(operations(&file, 0)[..2], [(FROM_GUEST, Op::Request), (TO_GUEST, Op::Response)]);
    assert_eq!(operations(&file, 1)[..2], [(TO_GUEST, Op::Request), (FROM_GUEST, Op::Response)]);
    assert!(payload(&file, 0, FROM_GUEST) == out, "as the one sent it");
    assert!(payload(&file, 1, TO_GUEST) == out, "as the other got it");
}

/// With 76 bytes a packet there are headers and no payload.
#[test]
fn headers_alone_are_captured_if_so_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, capture) = start(&dir, PREFIX_BYTES as u32);
    let backend = VsockBackend::captured(&[Vm::new("vm", 3)], Some(capture.clone()));
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    guest.ping(conn, &mut stream);
    drop(guest);
    drop(backend);
    assert!(capture.finish(PATIENCE));
    let file = read_file(&path);
    file.packets.iter().for_each(is_sound);
    assert!(file.packets.iter().all(|p| p.bytes.len() == PREFIX_BYTES));
    assert!(file.packets.iter().any(|p| p.len as usize == PREFIX_BYTES + 300), "what the guest sent");
}
