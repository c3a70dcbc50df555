//! What a frame costs on a packet port, by the socket or by a ring: CPU time of the worker. Needs
//! root; makes interfaces in a network namespace of its own.
//!
//! * `transmit`: copied by the kernel or into a ring, on an ifb, which takes lent pages as a
//!   network card does, and on a veth, which copies them. Cold: 64 MiB of frames.
//! * `receive`: from the socket or from a ring, on a veth. Beside the worker's time stands what all
//!   of it costs, with the time of the thread that sends the frames: a veth delivers in that, up to
//!   the ring or the socket's queue.
//!
//! `cargo run --release -p zerowire-net --example packet_cost [transmit|receive]`, both by
//! default.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use zerowire::packet::{Gso, PacketOptions, PacketSocket, VnetHeader};
use zerowire::send::frame::FrameSender;
use zerowire_guest::net::{FrameShape, Layout, NetDriver, NetOptions, RxMode, RxOptions, VirtioNetHdr};
use zerowire_guest::{GuestAddr, GuestMemory, Transport, VhostUser};
use zerowire_net::{Server, VmConfig};
use zerowire_testkit::net::in_netns;
use zerowire_vhost::serve::Endpoint;

const ROUNDS: usize = 7;
/// UDP frames longer than the MTU are to be segmented.
const LENGTHS: [usize; 5] = [64, 1500, 9000, 30_000, 60_000];
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn Error>> {
    Ok(in_netns(|| measure().map_err(|e| e.to_string()))?)
}

fn measure() -> Result<(), Box<dyn Error>> {
    ip("link add ifb0 type ifb")?;
    ip("link add v0 type veth peer name v1")?;
    for name in ["ifb0", "v0", "v1"] {
        ip(&format!("link set {name} up"))?;
    }
    println!("median (least) CPU ns a frame of {ROUNDS} rounds; threads of the back end");
    let ways = std::env::args().nth(1);
    match ways.as_deref() {
        None => transmit().and_then(|()| receive()),
        Some("transmit") => transmit(),
        Some("receive") => receive(),
        Some(other) => Err(format!("{other}: give transmit or receive, or nothing for both").into()),
    }
}

fn transmit() -> Result<(), Box<dyn Error>> {
    for interface in ["ifb0", "v0"] {
        for len in LENGTHS {
            let ports = ["off", "on"].map(|rings| format!("packet:{interface},rings={rings}"));
            let [off, on] = compare(&ports, |port| run(port, len))?;
            println!(
                "{interface:5} {len:6} B: by the kernel {off}, into a ring {on}, ratio {:.2}",
                on.median / off.median
            );
        }
    }
    Ok(())
}

fn receive() -> Result<(), Box<dyn Error>> {
    let mut from = PacketSocket::open("v1", &PacketOptions::default().offload(true))?;
    for (whole, len) in [true, false].into_iter().flat_map(|whole| LENGTHS.map(|len| (whole, len))) {
        let ports = ["socket", "ring"].map(|receive| format!("packet:v0,receive={receive}"));
        let mut all = [Vec::new(), Vec::new()];
        let mut turn = 0;
        let [socket, ring] = compare(&ports, |port| {
            let (worker, sender) = take(port, &mut from, len, whole)?;
            all[turn % 2].push(worker + sender);
            turn += 1;
            Ok(worker)
        })?;
        let [all_socket, all_ring] = all.map(Times::of);
        println!(
            "v0 {} {len:6} B: from the socket {socket}, from a ring {ring}, ratio {:.2}; with the sender {all_socket}, {all_ring}, \
             ratio {:.2}",
            if whole { "in bursts    " } else { "as they come " },
            ring.median / socket.median,
            all_ring.median / all_socket.median
        );
    }
    Ok(())
}

/// Of the rounds of one port.
struct Times {
    median: f64,
    least: f64,
}

impl Times {
    fn of(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self { median: all[all.len() / 2], least: all[0] }
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:7.0} ({:.0})", self.median, self.least)
    }
}

/// Measures both ports in turn, round by round.
fn compare(
    ports: &[String; 2],
    mut run: impl FnMut(&str) -> Result<f64, Box<dyn Error>>,
) -> Result<[Times; 2], Box<dyn Error>> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (port, times) in ports.iter().zip(&mut times) {
            times.push(run(port)?);
        }
    }
    Ok(times.map(Times::of))
}

fn ip(line: &str) -> Result<(), Box<dyn Error>> {
    let done = Command::new("ip").args(line.split(' ')).status()?;
    if done.success() { Ok(()) } else { Err(format!("ip {line}: {done}").into()) }
}

/// CPU time of the worker so far, ns.
fn spent() -> Result<u64, Box<dyn Error>> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == "vm-q0" {
            let text = std::fs::read_to_string(path.join("schedstat"))?;
            return Ok(text.split(' ').next().unwrap_or("").parse()?);
        }
    }
    Err("no worker".into())
}

fn serve(port: &str, socket: &Path) -> Result<Server, Box<dyn Error>> {
    let config = VmConfig::new("vm", Endpoint::Path(socket.to_owned()), port.parse()?);
    Ok(Server::start(vec![config])?)
}

/// The header of a frame from [`udp`].
fn header_of(len: usize) -> VirtioNetHdr {
    if len <= 1514 {
        return VirtioNetHdr::default();
    }
    VirtioNetHdr {
        flags: 1,
        gso_type: 5,
        hdr_len: 42,
        gso_size: 1472,
        csum_start: 34,
        csum_offset: 6,
        num_buffers: 0,
    }
}

fn run(port: &str, len: usize) -> Result<f64, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("vm");
    let server = serve(port, &socket)?;
    let memory = GuestMemory::new(&[(GuestAddr(0), 160 << 20)])?;
    let slots = (64 << 20) / len.max(1024);
    let options = NetOptions {
        tx: FrameShape { layout: Layout::Split, indirect: true, capacity: 65_550 },
        tx_slots: slots.min(1024),
        queue_size: 1024,
        ..NetOptions::default()
    };
    let front = VhostUser::connect(&socket, PATIENCE)?;
    let (mut driver, mut pairs) = NetDriver::start(front, &memory, &options)?;
    let tx = &mut pairs[0].tx;
    let frame = udp(len);
    let header = header_of(len);
    let count = (200_000_000 / (len + 4000)).min(20_000);
    let mut send = |count: usize| -> Result<(), Box<dyn Error>> {
        for n in 0..count {
            while !tx.send(&header, &frame)? {
                tx.publish()?;
                tx.wait(1, PATIENCE)?;
                tx.reap()?;
            }
            if n % 32 == 31 {
                tx.publish()?;
                tx.reap()?;
            }
        }
        tx.drain(PATIENCE)?;
        Ok(())
    };
    send(count / 10)?;
    let before = spent()?;
    send(count)?;
    let spent = spent()? - before;
    driver.stop()?;
    drop(server);
    Ok(spent as f64 / count as f64)
}

/// CPU time of the worker for a frame to the guest, and of this thread for sending it, ns. Frames
/// come in bursts that the ring, the socket's queue and the guest's buffers hold. The worker finds
/// each `whole`, the guest's queue being enabled when all is there, or takes frames as they come.
fn take(port: &str, from: &mut PacketSocket, len: usize, whole: bool) -> Result<(f64, f64), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("vm");
    let server = serve(port, &socket)?;
    let memory = GuestMemory::new(&[(GuestAddr(0), 64 << 20)])?;
    let rx = RxOptions { mode: RxMode::Mergeable { buffer_len: 1536 }, indirect: false, buffers: 1024 };
    let options = NetOptions { rx: Some(rx), queue_size: 1024, ..NetOptions::default() };
    let front = VhostUser::connect(&socket, PATIENCE)?;
    let (mut driver, mut pairs) = NetDriver::start(front, &memory, &options)?;
    let rx = &mut pairs[0].rx;
    let frame = udp(len);
    let header = match len > 1514 {
        true => VnetHeader::segments(Gso::UdpL4, 42, 1472, 34, 6)?,
        false => VnetHeader::NONE,
    };
    let burst = (1_000_000 / len.max(1536)).min(500);
    let mut receive = |count: usize| -> Result<u64, Box<dyn Error>> {
        let mut sending = 0;
        for _ in 0..count.div_ceil(burst) {
            driver.transport().enable_queue(0, !whole)?;
            let before = own_time();
            for _ in 0..burst {
                while !from.push_offload(&header, len, &mut |to| to.copy_from_slice(&frame))? {
                    from.flush()?;
                    from.reap();
                }
            }
            from.flush()?;
            from.reap();
            sending += own_time() - before;
            driver.transport().enable_queue(0, true)?;
            for n in 0..burst {
                let (_, got) = rx.recv(PATIENCE)?.ok_or_else(|| format!("frame {n} of a burst came not"))?;
                if got.len() != len {
                    return Err(format!("{len} bytes were sent, {} came", got.len()).into());
                }
            }
        }
        Ok(sending)
    };
    let count = (400_000_000 / (len + 4000)).min(60_000).next_multiple_of(burst);
    receive(count / 10)?;
    let before = spent()?;
    let sending = receive(count)?;
    let spent = spent()? - before;
    driver.stop()?;
    drop(server);
    Ok((spent as f64 / count as f64, sending as f64 / count as f64))
}

/// CPU time of this thread, ns.
fn own_time() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A UDP frame whose checksum is left to the interface.
fn udp(len: usize) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    f.extend_from_slice(&((len - 14) as u16).to_be_bytes());
    f.extend_from_slice(&[0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 0x30, 0x39, 0, 80]);
    f.extend_from_slice(&((len - 34) as u16).to_be_bytes());
    f.resize(len, 0);
    f
}
