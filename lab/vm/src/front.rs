//! A front end without a VM, as any user may start it: `zw-front SOCKET COUNT [RECEIVE]` drives a
//! network device, sends COUNT frames, and says how many the back end gave back. Then it waits for
//! RECEIVE frames to its own address.

use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use zerowire_guest::net::{NetDriver, NetOptions, VirtioNetHdr};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser, VhostUserOptions};

/// For the back end to send what it was given, and for frames to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// To everybody, from an address of nobody, of a protocol for experiments (IEEE 802, 88b5).
const HEAD: [u8; 14] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5];

fn main() -> ExitCode {
    match run() {
        Ok(count) => {
            println!("{count} frames");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("zw-front: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<usize> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: zw-front SOCKET COUNT [RECEIVE]";
    let (socket, count) = (arguments.next().context(usage)?, arguments.next().context(usage)?);
    let count: usize = count.parse().context(usage)?;
    let wanted: usize = arguments.next().as_deref().unwrap_or("0").parse().context(usage)?;
    let stream = UnixStream::connect(&socket).with_context(|| format!("connect to {socket}"))?;
    let transport = VhostUser::from_stream(stream, &VhostUserOptions::default()).context("the handshake")?;
    let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)])?;
    let (_driver, mut pairs) = NetDriver::start(transport, &memory, &NetOptions::default())?;
    let mut frame = HEAD.to_vec();
    frame.resize(600, 0x5a);
    let pair = pairs.first_mut().context("no queue pair")?;
    for number in 0..count {
        ensure!(pair.tx.send(&VirtioNetHdr::default(), &frame)?, "frame {number} does not fit");
        ensure!(pair.tx.drain(PATIENCE)?, "frame {number} was not given back");
    }
    let (begin, mut received) = (Instant::now(), 0);
    while received < wanted {
        let left = PATIENCE.saturating_sub(begin.elapsed());
        let (_, frame) =
            pair.rx.recv(left)?.with_context(|| format!("{received} of {wanted} frames have come"))?;
        received += usize::from(frame.get(..6) == HEAD.get(6..12));
    }
    Ok(count)
}
