//! A guest's UDP datagrams to a socket of the host: `zerowire net` on a tap that has the host's
//! address, beside passt, which sends each datagram from a socket of its own.
//!
//! ```text
//!   guest -- ring -- zerowire -- tap -- the kernel's IP ------------- socket that drops
//!   guest -- ring -- passt -- sendmsg() -- the kernel's IP, lo ------ socket that drops
//! ```
//!
//! The socket has a filter that drops each datagram, and the kernel counts them. So no datagram
//! waits for a reader, and none is lost unseen.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use zerowire_sys::socket::attach_filter;

use super::cell::{OURS, PeerCell, Peers};
use super::find::PeerProgram;
use super::options::PeersOptions;
use super::sides::{MissingPeers, PeerSide, compare};
use crate::backend::{BackendKind, BackendProcess};
use crate::case::{Case, Direction, WorkingSet};
use crate::cpu::Placement;
use crate::experiment::{CellReport, ProgressLine, Turn};
use crate::frame::{Frame, GUEST_MAC, SOURCE_IP, TARGET_IP};
use crate::guest::NetGuest;
use crate::netns::NetnsLink;
use crate::transfer::TransferSample;

/// Lengths of frames, Ethernet header included.
const LENS: [usize; 2] = [64, 1500];
/// The port of [`Frame`]s.
const PORT: u16 = 9;
/// passt's Ethernet address (`-M`).
const PASST_MAC: [u8; 6] = [0x9a, 0x55, 0x9a, 0x55, 0x9a, 0x55];
/// Holds both addresses of [`Frame`]s.
const PREFIX: u32 = 15;
/// The guest's memory that holds payload.
const SET: WorkingSet = WorkingSet::Hot;
/// Frames are in one piece.
const FRAGMENT_LEN: usize = 32 << 10;
/// How long a back end may take to go to sleep, and datagrams to arrive.
const SETTLE_LIMIT: Duration = Duration::from_millis(60);

/// Measures all rows in the namespace of the calling thread.
pub(super) fn measure(options: &PeersOptions, placement: &Placement) -> Result<Vec<CellReport<Peers>>> {
    placement.pin_driver()?;
    NetnsLink::new("lo")?.up()?;
    let sink = Sink::new()?;
    let ours = BackendProcess::start(&options.program, &BackendKind::zero_copy(), 1, placement)?;
    let link = ours.link(0)?;
    link.set_ipv4(Ipv4Addr::from(TARGET_IP), PREFIX)?;
    let mut back_ends = vec![BackEnd { name: OURS, process: ours, mac: link.mac()?, guest: None }];
    let mut missing = MissingPeers::default();
    let passt = missing.start(PeerProgram::Passt, options, |program| {
        BackendProcess::start_peer(|socket| command(&program, socket), placement)
    });
    back_ends.extend(passt.map(|process| BackEnd { name: "passt", process, mac: PASST_MAC, guest: None }));
    let mut progress = ProgressLine::new("peers udp", LENS.len() * (options.rounds() + 1));
    let mut cells = Vec::with_capacity(LENS.len());
    for frame_len in LENS {
        let case = Case { direction: Direction::Transmit, frame_len, working_set: SET };
        let frames = 2 * case.frames(options.quick);
        let sides = back_ends.iter_mut().map(|back_end| {
            let sink = &sink;
            PeerSide::new(back_end.name, move |turn| {
                if turn == Turn::WarmUp {
                    back_end.prepare(frame_len, placement)?;
                    return back_end.run(sink, frame_len, case.burst());
                }
                back_end.run(sink, frame_len, frames)
            })
        });
        let at = PeerCell::Udp { frame_len };
        cells.push(compare(at, sides.collect(), &missing, options.rounds(), &mut progress));
    }
    Ok(cells)
}

/// passt for the guest of [`Frame`]s. Datagrams to the gateway go to the host's loopback address.
fn command(program: &Path, socket: &Path) -> Command {
    let (guest, host) = (Ipv4Addr::from(SOURCE_IP).to_string(), Ipv4Addr::from(TARGET_IP).to_string());
    let mut command = Command::new(program);
    command.args(["--foreground", "--vhost-user", "--ipv4-only", "--no-dhcp", "--no-tcp", "--no-icmp"]);
    // Its own user could not make the socket in a folder of ours.
    command.args(["--runas", "0", "--address", &guest, "--netmask", &PREFIX.to_string()]);
    command.args(["--gateway", &host, "--map-host-loopback", &host, "--socket"]).arg(socket);
    command
}

/// A running back end and its guest.
struct BackEnd {
    name: &'static str,
    process: BackendProcess,
    /// The station that the guest sends to.
    mac: [u8; 6],
    guest: Option<NetGuest>,
}

impl BackEnd {
    /// Connects a guest with frames of `frame_len` bytes.
    fn prepare(&mut self, frame_len: usize, placement: &Placement) -> Result<()> {
        // The guest before goes first: the back end serves one front end a socket.
        self.guest = None;
        let frame = Frame::build(frame_len, self.mac, GUEST_MAC)?;
        let memory = NetGuest::transmit_bytes(SET.bytes(), &frame, FRAGMENT_LEN);
        let mut guest = NetGuest::connect(&self.process.socket(0), memory)?;
        guest.prepare_transmit(SET.bytes(), &frame, FRAGMENT_LEN)?;
        self.process.pin(placement)?;
        self.guest = Some(guest);
        Ok(())
    }

    /// Sends `frames` frames; each has to arrive.
    fn run(&mut self, sink: &Sink, frame_len: usize, frames: usize) -> Result<TransferSample> {
        let clock = self.process.clock()?;
        let guest = self.guest.as_mut().context("no guest was connected")?;
        let before = (sink.arrived()?, clock.settled(SETTLE_LIMIT)?.0);
        let wall = guest.transmit(frames);
        let cpu = clock.settled(SETTLE_LIMIT)?.0 - before.1;
        let wall = wall.with_context(|| format!("its last words: {}", self.process.log()))?;
        sink.wait_for(before.0 + frames as u64)?;
        Ok(TransferSample::of_frames((cpu, wall), frames, frame_len))
    }
}

/// A socket that drops all, in the namespace of the calling thread.
struct Sink {
    _socket: UdpSocket,
}

impl Sink {
    fn new() -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("can't bind the UDP socket")?;
        // BPF_RET | BPF_K: keep 0 bytes.
        let mut nothing = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
        attach_filter(&socket, &mut nothing).context("can't attach a filter to the UDP socket")?;
        Ok(Self { _socket: socket })
    }

    /// Datagrams that were dropped so far.
    fn arrived(&self) -> Result<u64> {
        let text = fs::read_to_string("/proc/thread-self/net/snmp")?;
        in_errors(&text).context("/proc/net/snmp has no InErrors of UDP")
    }

    fn wait_for(&self, count: u64) -> Result<()> {
        let begin = Instant::now();
        loop {
            let arrived = self.arrived()?;
            if arrived == count {
                return Ok(());
            }
            if begin.elapsed() > SETTLE_LIMIT {
                bail!("{arrived} datagrams in all arrived where {count} were sent: the run is void");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// UDP's InErrors in the text of /proc/net/snmp: a line of names, and one of values.
fn in_errors(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let (names, values) = (lines.next()?.split_whitespace(), lines.next()?.split_whitespace());
    names.zip(values).find(|(name, _)| *name == "InErrors")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_by_their_name() {
        let text = "Ip: Forwarding InErrors\nIp: 1 9\nUdp: InDatagrams NoPorts InErrors\nUdp: 5 6 7\n\
                    UdpLite: InDatagrams NoPorts InErrors\nUdpLite: 1 1 1\n";
        assert_eq!(in_errors(text), Some(7));
        assert_eq!(in_errors("Udp: InErrors\n"), None);
    }
}
