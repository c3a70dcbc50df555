//! Ports are attached and detached, and nothing is left behind: neither in this process nor in the
//! kernel.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use zerowire_guest::GuestMemory;
use zerowire_guest::net::VirtioNetHdr;
use zerowire_sys::netlink::LinkInfo;
use zerowire_vhost::memory::PinBudget;
use zerowire_vmtest::xdp::{Ask, frame};

use super::PATIENCE;
use super::back_end::BackEnd;
use super::echo::{EchoVm, memory};

/// Cycles before the first check of what is held, and between two checks.
const FIRST: u32 = 5;
const BETWEEN: u32 = 50;

/// For a requested frame to come, before the program requests it again.
const ONCE: Duration = Duration::from_millis(200);

/// `cycles INTERFACE COUNT`: the program is attached, memory registered and a socket bound, a frame
/// goes each way, and all of it ends.
pub fn run(interface: &str, count: &str) -> Result<String> {
    let count: u32 = count.parse().with_context(|| format!("'{count}' cycles: give a number"))?;
    let memory = memory(true)?;
    for n in 0..FIRST {
        cycle(interface, &memory, n).with_context(|| format!("cycle {n}"))?;
    }
    let before = at_rest(interface, None)?;
    let start = Instant::now();
    for n in FIRST..FIRST + count {
        cycle(interface, &memory, n).with_context(|| format!("cycle {n}"))?;
        if n % BETWEEN == 0 {
            at_rest(interface, Some(&before)).with_context(|| format!("after cycle {n}"))?;
        }
    }
    at_rest(interface, Some(&before))?;
    let each = start.elapsed().as_millis() / u128::from(count.max(1));
    Ok(format!("{count} cycles of {each} ms; held before and after: {before:?}"))
}

fn cycle(interface: &str, memory: &GuestMemory, n: u32) -> Result<()> {
    let back_end = BackEnd::start(&format!("xdp:{interface},mode=zerocopy"))?;
    let mut vm = EchoVm::start(back_end.socket(), memory, 1)?;
    ensure!(LinkInfo::find(interface)?.xdp.is_some(), "no program on {interface}");
    let ask = Ask { first: n, len: 60 + (n % 1400) as u16, count: 1 };
    let wanted = frame(n, ask.len.into());
    let start = Instant::now();
    let pair = vm.pairs().first_mut().context("no queue pair")?;
    loop {
        ensure!(start.elapsed() < PATIENCE, "no frame comes: {}", back_end.json()?);
        ensure!(pair.tx.send(&VirtioNetHdr::default(), &ask.to_frame())?, "the queue is full");
        ensure!(pair.tx.drain(PATIENCE)?, "a frame was not given back");
        // Others are of the cycle before.
        let came = pair.rx.recv(ONCE)?;
        if came.is_some_and(|(_, bytes)| bytes == wanted) {
            break;
        }
    }
    let stats = back_end.now();
    ensure!(stats.path.contains(", zero copy") && stats.transmit.totals.zero_copied_frames > 0, "{stats:?}");
    vm.stop()?;
    drop(back_end);
    ensure!(LinkInfo::find(interface)?.xdp.is_none(), "a program stays on {interface}");
    Ok(())
}

/// What this process holds, and what the kernel does for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "read by comparing and printing")]
struct Holdings {
    descriptors: usize,
    /// Mappings of guest memory and of sockets' rings.
    mappings: usize,
    threads: usize,
    /// Of the budget for pinned memory.
    budget_bytes: u64,
    locked_kib: u64,
    pinned_kib: u64,
    /// Pinned for long in all of this kernel.
    pinned_pages: u64,
    free_huge_pages: u64,
    /// A program on the interface.
    program: bool,
}

impl Holdings {
    fn now(interface: &str) -> Result<Self> {
        let entries = |path| -> Result<usize> { Ok(std::fs::read_dir(path).context("procfs")?.count()) };
        let maps = read("/proc/self/maps")?;
        let status = read("/proc/self/status")?;
        let vmstat = read("/proc/vmstat")?;
        let pins = ["nr_foll_pin_acquired", "nr_foll_pin_released"].map(|name| number(&vmstat, name));
        let [acquired, released] = pins;
        Ok(Self {
            descriptors: entries("/proc/self/fd")?,
            mappings: maps.lines().filter(|l| ["memfd:", "socket:"].iter().any(|w| l.contains(w))).count(),
            threads: entries("/proc/self/task")?,
            budget_bytes: PinBudget::of_process().used(),
            locked_kib: number(&status, "VmLck:")?,
            pinned_kib: number(&status, "VmPin:")?,
            pinned_pages: acquired?.wrapping_sub(released?),
            free_huge_pages: number(&read("/proc/meminfo")?, "HugePages_Free:")?,
            program: LinkInfo::find(interface)?.xdp.is_some(),
        })
    }
}

/// What is held when that changes no more, and is as before (first: nothing is pinned). The kernel
/// frees memory a little later than its socket, and counts it later still.
fn at_rest(interface: &str, before: Option<&Holdings>) -> Result<Holdings> {
    let start = Instant::now();
    let mut last = Holdings::now(interface)?;
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = Holdings::now(interface)?;
        let is_free = now.budget_bytes == 0 && now.pinned_pages == 0;
        if now == last && before.map_or(is_free, |before| now == *before) {
            return Ok(now);
        }
        last = now;
        ensure!(start.elapsed() < PATIENCE, "held: {now:?}, before: {before:?}");
    }
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {path}"))
}

/// The number behind a name at the begin of a line.
fn number(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).with_context(|| format!("no number '{name}'"))
}
