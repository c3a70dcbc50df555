//! A VM that sends back what comes to it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use zerowire_guest::net::{
    FrameShape, Layout, NetDriver, NetOptions, QueuePair, RxMode, RxOptions, VirtioNetHdr,
};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_vmtest::xdp::{HERE, STOP};

use super::PATIENCE;
use super::back_end::BackEnd;

/// Bytes of the VM's memory: a few huge pages.
const MEMORY_BYTES: usize = 8 << 20;

/// How often it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// The VM's side of its device.
pub struct EchoVm {
    driver: NetDriver<VhostUser>,
    pairs: Vec<QueuePair>,
}

impl EchoVm {
    /// Starts the driver on the back end at `socket`.
    pub fn start(socket: &Path, memory: &GuestMemory, pairs: u16) -> Result<Self> {
        let options = NetOptions {
            queue_pairs: pairs,
            tx: FrameShape { layout: Layout::Single, indirect: false, capacity: 2048 },
            rx: Some(RxOptions { mode: RxMode::Mergeable { buffer_len: 4096 }, indirect: false, buffers: 0 }),
            ..NetOptions::default()
        };
        let (driver, pairs) = NetDriver::start(VhostUser::connect(socket, PATIENCE)?, memory, &options)?;
        Ok(Self { driver, pairs })
    }

    /// Sends frames of the wire's end back on the queue that they came to, with `name` as the last
    /// byte of their sender. Ends when the file [`STOP`] exists.
    fn echo(&mut self, name: u8) -> Result<()> {
        std::thread::scope(|scope| {
            let each = self.pairs.iter_mut().map(|pair| scope.spawn(move || echo(pair, name)));
            let each: Vec<_> = each.collect();
            println!("ready");
            each.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| bail!("a queue pair panicked")))
        })
    }

    /// The queues, lowest first.
    pub fn pairs(&mut self) -> &mut [QueuePair] {
        &mut self.pairs
    }

    /// Stops the queues, and takes the connection down.
    pub fn stop(mut self) -> Result<()> {
        Ok(self.driver.stop()?)
    }
}

/// Memory for a VM, on huge pages or not.
pub fn memory(huge: bool) -> Result<GuestMemory> {
    Ok(GuestMemory::with_huge_pages(&[(GuestAddr(0), MEMORY_BYTES)], huge)?)
}

/// `own MODE INTERFACE huge|small`: with a back end of its own.
pub fn own(mode: &str, interface: &str, pages: &str) -> Result<String> {
    let huge = match pages {
        "huge" => true,
        "small" => false,
        other => bail!("'{other}' pages: give huge or small"),
    };
    let back_end = BackEnd::start(&format!("xdp:{interface},mode={mode}"))?;
    let mut vm = match EchoVm::start(back_end.socket(), &memory(huge)?, 1) {
        Ok(vm) => vm,
        Err(e) => bail!("{e:#}: {}", back_end.stats().last_error.unwrap_or_default()),
    };
    let echoed = vm.echo(0);
    let stats = back_end.json()?;
    echoed.with_context(|| format!("{stats}; {}", link(interface)))?;
    vm.stop()?;
    Ok(stats)
}

/// `echo SOCKET PAIRS NAME`: on the back end of another process.
pub fn on(socket: &str, pairs: &str, name: &str) -> Result<String> {
    let number = || format!("'{pairs}' pairs, name '{name}': give numbers");
    let (pairs, name) = (pairs.parse().with_context(number)?, name.parse().with_context(number)?);
    let mut vm = EchoVm::start(Path::new(socket), &memory(true)?, pairs)?;
    vm.echo(name)?;
    let frames = |p: &QueuePair| p.rx.frames().to_string();
    Ok(vm.pairs().iter().map(frames).collect::<Vec<_>>().join(" "))
}

fn echo(pair: &mut QueuePair, name: u8) -> Result<()> {
    let mut last = Instant::now();
    loop {
        let Some((_, mut frame)) = pair.rx.recv(LOOK)? else {
            if Path::new(STOP).exists() {
                return Ok(());
            }
            ensure!(last.elapsed() < PATIENCE, "no frame for {PATIENCE:?}");
            continue;
        };
        if frame.get(6..12) != Some(&HERE) {
            continue;
        }
        last = Instant::now();
        let (to, from) = frame.split_at_mut(6);
        to.swap_with_slice(&mut from[..6]);
        from[5] = name;
        while !pair.tx.send(&VirtioNetHdr::default(), &frame)? {
            pair.tx.wait(1, PATIENCE)?;
            pair.tx.reap()?;
        }
        ensure!(pair.tx.drain(PATIENCE)?, "a frame was not given back");
    }
}

fn link(interface: &str) -> String {
    let output = std::process::Command::new("ip").args(["link", "show", interface]).output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
}
