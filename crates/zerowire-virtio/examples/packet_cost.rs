//! What a frame of the guest costs on a packet port, copied by the kernel or into a ring: CPU time of the worker, on an ifb, which
//! takes lent pages as a network card does, and on a veth, which copies them. Cold: 64 MiB of frames. Needs root; makes
//! interfaces in a network namespace of its own.
//!
//! `cargo run --release -p zerowire-virtio --example packet_cost`

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use zerowire_guest::net::{FrameShape, Layout, NetDriver, NetOptions, VirtioNetHdr};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_virtio::daemon::{Endpoint, Server, VmConfig};
use zerowire_virtio::io::Engine;
use zerowire_virtio::net::Policy;

const ROUNDS: usize = 7;
/// UDP frames longer than the MTU are to be segmented.
const LENGTHS: [usize; 5] = [64, 1500, 9000, 30_000, 60_000];
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: takes no pointers; this is the only thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    ip("link add ifb0 type ifb")?;
    ip("link add v0 type veth peer name v1")?;
    for name in ["ifb0", "v0", "v1"] {
        ip(&format!("link set {name} up"))?;
    }
    println!("median (least) CPU ns a frame of {ROUNDS} rounds; threads of the back end");
    for interface in ["ifb0", "v0"] {
        for len in LENGTHS {
            let ports = ["off", "on"].map(|rings| format!("packet:{interface},rings={rings}"));
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                for (port, times) in ports.iter().zip(&mut times) {
                    times.push(run(port, len)?);
                }
            }
            times.iter_mut().for_each(|t| t.sort_by(f64::total_cmp));
            let [off, on] = times.each_ref().map(|t| (t[ROUNDS / 2], t[0]));
            println!(
                "{interface:5} {len:6} B: by the kernel {:7.0} ({:.0}), into a ring {:7.0} ({:.0}), ratio {:.2}",
                off.0,
                off.1,
                on.0,
                on.1,
                on.0 / off.0
            );
        }
    }
    Ok(())
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

fn run(port: &str, len: usize) -> Result<f64, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("vm");
    let config = VmConfig {
        name: "vm".to_owned(),
        endpoint: Endpoint::Path(socket.clone()),
        port: port.parse()?,
        metadata: None,
        policy: Policy::default(),
        engine: Engine::Auto,
    };
    let server = Server::start(vec![config])?;
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
    let header = if len > 1514 {
        VirtioNetHdr {
            flags: 1,
            gso_type: 5,
            hdr_len: 42,
            gso_size: 1472,
            csum_start: 34,
            csum_offset: 6,
            num_buffers: 0,
        }
    } else {
        VirtioNetHdr::default()
    };
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

/// A UDP frame whose checksum is left to the interface.
fn udp(len: usize) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    f.extend_from_slice(&((len - 14) as u16).to_be_bytes());
    f.extend_from_slice(&[0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 0x30, 0x39, 0, 80]);
    f.extend_from_slice(&((len - 34) as u16).to_be_bytes());
    f.resize(len, 0);
    f
}
