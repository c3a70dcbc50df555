//! `zw-xdp`: a VM without a VMM inside a guest, on the guest's own interface by AF_XDP. It sends back what it receives.
//!
//! ```text
//! zw-xdp MODE INTERFACE huge|small
//! ```
//! The back end and the VM's driver are in this one process; the VM's memory lies on huge pages, or not. Frames of type
//! 0x88b5 go back with their addresses exchanged; one of type 0x88b6 ends the program. The last line is `ok` and the
//! statistics as JSON, or `failed: …`; the exit status is 0 or 1.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use zerowire_guest::net::{
    FrameShape, Layout, NetDriver, NetOptions, QueuePair, RxMode, RxOptions, VirtioNetHdr,
};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_virtio::daemon::{Endpoint, Server, VmConfig};
use zerowire_virtio::io::Engine;
use zerowire_virtio::net::Policy;

/// How long the program waits for a frame.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of the VM's memory: a few huge pages.
const MEMORY_BYTES: usize = 8 << 20;

/// Where a frame has its type.
const TYPE: std::ops::Range<usize> = 12..14;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(text) => {
            println!("ok {text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<String> {
    let [mode, interface, pages] = words else { bail!("usage: zw-xdp MODE INTERFACE huge|small") };
    let huge = match pages.as_str() {
        "huge" => true,
        "small" => false,
        other => bail!("'{other}' pages: give huge or small"),
    };
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("vm");
    let server = Server::start(vec![VmConfig {
        name: "vm".to_owned(),
        endpoint: Endpoint::Path(socket.clone()),
        port: format!("xdp:{interface},mode={mode}").parse()?,
        metadata: None,
        policy: Policy::default(),
        engine: Engine::Auto,
    }])?;
    let memory = GuestMemory::with_huge_pages(&[(GuestAddr(0), MEMORY_BYTES)], huge)?;
    let options = NetOptions {
        tx: FrameShape { layout: Layout::Single, indirect: false, capacity: 2048 },
        rx: Some(RxOptions { mode: RxMode::Mergeable { buffer_len: 4096 }, indirect: false, buffers: 0 }),
        ..NetOptions::default()
    };
    let started = NetDriver::start(VhostUser::connect(&socket, PATIENCE)?, &memory, &options);
    let (driver, mut pairs) = match started {
        Ok(started) => started,
        Err(e) => {
            let said = server.stats().vms.into_iter().find_map(|v| v.last_error);
            bail!("{e}: {}", said.unwrap_or_default());
        }
    };
    let echoed = echo(&mut pairs[0]);
    let link = std::process::Command::new("ip").args(["link", "show", interface]).output();
    let link = link.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let stats = serde_json::to_string(&server.stats().vms[0])?;
    drop((pairs, driver));
    echoed.with_context(|| format!("{stats}; {link}"))?;
    Ok(stats)
}

fn echo(pair: &mut QueuePair) -> Result<()> {
    let mut last = Instant::now();
    loop {
        let Some((_, mut frame)) = pair.rx.recv(Duration::from_secs(1))? else {
            ensure!(last.elapsed() < PATIENCE, "no frame for {PATIENCE:?}");
            continue;
        };
        match frame.get(TYPE) {
            Some([0x88, 0xb5]) => {}
            Some([0x88, 0xb6]) => return Ok(()),
            _ => continue,
        }
        last = Instant::now();
        let (to, from) = frame.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
        while !pair.tx.send(&VirtioNetHdr::default(), &frame)? {
            pair.tx.wait(1, PATIENCE)?;
            pair.tx.reap()?;
        }
        ensure!(pair.tx.drain(PATIENCE)?, "a frame was not given back");
    }
}
