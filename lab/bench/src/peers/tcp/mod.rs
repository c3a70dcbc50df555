//! `zerowire send` and `zerowire recv` beside iperf3, over a veth pair.
//!
//! ```text
//!   namespace of the benchmark              another namespace
//!   zwtcp 198.18.0.1/24 <-----------------> zwtcp2 198.18.0.2/24
//!   the program that is measured            a thread of this program that reads or writes
//! ```
//!
//! The thread speaks iperf3's protocol with iperf3, and plain TCP with ours. The rate is that which
//! it sees. CPU time is that of the whole program that is measured, its start included. What the
//! program sends, the kernel receives at its cost, as on any veth pair.

mod far;

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use rustix::fs::{MemfdFlags, memfd_create};

use self::far::Moved;
use super::cell::{OURS, PeerCell, Peers};
use super::child;
use super::find::PeerProgram;
use super::options::PeersOptions;
use super::sides::{MissingPeers, PeerSide, compare};
use crate::amount::amount;
use crate::case::Direction;
use crate::cpu::Placement;
use crate::experiment::CellReport;
use crate::experiment::ProgressLine;
use crate::experiment::Turn;
use crate::held::Held;
use crate::netns::{NetnsLink, OtherNamespace};
use crate::packet_tx::links::add_veth;
use crate::tcp_rx::iperf3;
use crate::transfer::TransferSample;

const NEAR_LINK: &str = "zwtcp";
const FAR_LINK: &str = "zwtcp2";
/// The program that is measured. Both are from the networks for benchmarks (RFC 2544).
const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The thread.
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Bytes that the thread reads or writes in a call: as iperf3 does.
pub(super) const CALL: usize = 128 << 10;
/// The first port that a receiver listens at; each run has the next one.
const FIRST_PORT: u16 = 5201;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransferWay {
    /// `zerowire send` of a file, `zerowire recv`.
    Ours,
    /// iperf3 that sends a file: `-F`.
    Iperf3File,
    /// iperf3, which sends one buffer again and again.
    Iperf3,
    /// The server of iperf3, which receives.
    Iperf3Server,
    /// iperf3 that sends one buffer by sendfile(): `-Z`.
    Iperf3Sendfile,
}

impl TransferWay {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => OURS,
            Self::Iperf3File => "iperf3 -F",
            Self::Iperf3 => "iperf3",
            Self::Iperf3Server => "iperf3 -s",
            Self::Iperf3Sendfile => "iperf3 -Z",
        }
    }
}

/// Measures both rows in the namespace of the calling thread.
pub(super) fn measure(options: &PeersOptions, placement: &Placement) -> Result<Vec<CellReport<Peers>>> {
    placement.pin_driver()?;
    let mut missing = MissingPeers::default();
    let iperf3 = missing.start(PeerProgram::Iperf3, options, Ok);
    let lab = TcpLab::new(options, iperf3, placement)?;
    let bytes = amount(if options.quick { 256 << 20 } else { 1 << 30 }) as u64;
    let file = payload(bytes)?;
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    let mut progress = ProgressLine::new("peers tcp", 2 * (options.rounds() + 1));
    let mut cells = Vec::new();
    for direction in Direction::ALL {
        let ways = match (direction, &lab.iperf3) {
            (_, None) => &[TransferWay::Ours][..],
            (Direction::Transmit, _) => &[
                TransferWay::Ours,
                TransferWay::Iperf3File,
                TransferWay::Iperf3,
                TransferWay::Iperf3Sendfile,
            ],
            (Direction::Receive, _) => &[TransferWay::Ours, TransferWay::Iperf3Server],
        };
        let sides = ways.iter().map(|way| {
            let (lab, path) = (&lab, &path);
            PeerSide::new(way.name(), move |turn| match direction {
                Direction::Transmit => lab.send(*way, path, bytes),
                Direction::Receive if turn == Turn::WarmUp => lab.receive(*way, bytes / 8),
                Direction::Receive => lab.receive(*way, bytes),
            })
        });
        let at = PeerCell::Tcp { direction };
        cells.push(compare(at, sides.collect(), &missing, options.rounds(), &mut progress));
    }
    Ok(cells)
}

/// A file of `bytes` bytes in memory, which children open by its path in /proc.
fn payload(bytes: u64) -> Result<File> {
    let mut file = File::from(memfd_create("payload", MemfdFlags::CLOEXEC)?);
    let piece: Vec<u8> = (0..1usize << 20).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    for _ in 0..bytes / piece.len() as u64 {
        file.write_all(&piece).context("can't write the payload into memory")?;
    }
    Ok(file)
}

/// The pair of interfaces, and the programs.
struct TcpLab<'a> {
    ours: &'a Path,
    iperf3: Option<PathBuf>,
    placement: &'a Placement,
    held: Held,
    far: OtherNamespace,
    next_port: AtomicU16,
}

impl<'a> TcpLab<'a> {
    fn new(options: &'a PeersOptions, iperf3: Option<PathBuf>, placement: &'a Placement) -> Result<Self> {
        let far = OtherNamespace::new()?;
        add_veth(NEAR_LINK, FAR_LINK, far.as_fd())?;
        let lab = Self {
            ours: &options.program,
            iperf3,
            placement,
            held: Held::temporary()?,
            far,
            next_port: AtomicU16::new(FIRST_PORT),
        };
        let up = |name: &str, address| -> Result<()> {
            let link = NetnsLink::new(name)?;
            link.set_ipv4(address, 24)?;
            link.up()
        };
        lab.far.run(|| up(FAR_LINK, FAR))?;
        up(NEAR_LINK, NEAR)?;
        Ok(lab)
    }

    /// A program sends the file at `path`, or as many bytes.
    fn send(&self, way: TransferWay, path: &Path, bytes: u64) -> Result<TransferSample> {
        let listener = self.far.run(|| Ok(TcpListener::bind((FAR, 0))?))?;
        let port = listener.local_addr()?.port();
        let command = match way {
            TransferWay::Ours => {
                let mut command = Command::new(self.ours);
                command.args(["send", "-q", "--to", &format!("{FAR}:{port}")]).arg(path);
                command
            }
            _ => {
                let mut command = self.iperf3()?;
                command.args(["-c", &FAR.to_string(), "-p", &port.to_string()]);
                match way {
                    TransferWay::Iperf3File => command.arg("-F").arg(path),
                    TransferWay::Iperf3Sendfile => command.args(["-Z", "-n", &bytes.to_string()]),
                    _ => command.args(["-n", &bytes.to_string()]),
                };
                command
            }
        };
        self.run(command, bytes, |gone| match way {
            TransferWay::Ours => far::read_plain(&listener, gone),
            _ => far::read_as_iperf3(&listener, gone),
        })
    }

    /// A program receives `bytes` bytes.
    fn receive(&self, way: TransferWay, bytes: u64) -> Result<TransferSample> {
        let port = self.next_port.fetch_add(1, Ordering::Relaxed);
        let (near, text) = (SocketAddr::from((NEAR, port)), port.to_string());
        let command = match way {
            TransferWay::Ours => {
                let mut command = Command::new(self.ours);
                command.args(["recv", "--quiet", "--bind", &NEAR.to_string(), "-p", &text]);
                command
            }
            _ => {
                let mut command = self.iperf3()?;
                command.args(["-s", "-1", "-B", &NEAR.to_string(), "-p", &text]);
                command
            }
        };
        self.run(command, bytes, |gone| match way {
            TransferWay::Ours => far::write_plain(near, bytes, gone),
            _ => iperf3::send(far::connect(near, gone)?, bytes, CALL),
        })
    }

    fn iperf3(&self) -> Result<Command> {
        Ok(Command::new(self.iperf3.as_ref().context("no iperf3")?))
    }

    /// Runs `command`, and `far` at the far end, until both are done. `far` moves `bytes` bytes,
    /// and can ask whether the program has ended.
    fn run(
        &self,
        mut command: Command,
        bytes: u64,
        far: impl FnOnce(&AtomicBool) -> Result<Moved> + Send,
    ) -> Result<TransferSample> {
        let gone = AtomicBool::new(false);
        let (ended, moved) = std::thread::scope(|scope| {
            let at_far_end = || {
                self.placement.pin_driver()?;
                far(&gone)
            };
            let thread = scope.spawn(|| self.far.run(at_far_end));
            let ended = child::run(&mut command, &self.held, self.placement);
            let far_was_first = thread.is_finished();
            gone.store(true, Ordering::Release);
            let moved = thread.join().map_err(|_| anyhow!("the thread of the far end panicked"));
            let moved = moved.and_then(|moved| moved).context("the far end");
            // What failed first may be why the other side did.
            match moved {
                Err(far) if far_was_first => (ended.map_err(|own| anyhow!("{own:#}; {far:#}")), Err(far)),
                moved => (ended, moved),
            }
        });
        let (ended, (count, took)) = (ended?, moved?);
        // iperf3 looks at the number of bytes behind each call that begins below it.
        if !(bytes..=bytes + CALL as u64).contains(&count) {
            bail!("{count} bytes came where {bytes} were sent: the run is void");
        }
        Ok(TransferSample::of_stream((ended.cpu, took), count))
    }
}
