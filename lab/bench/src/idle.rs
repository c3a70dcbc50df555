//! What a back end costs while nothing happens: memory, CPU, and the time until it listens.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::backend::{BackendKind, BackendProcess};
use crate::cpu::Placement;
use crate::guest::NetGuest;
use crate::stats::{Summary, percent};

/// Memory of each idle guest.
const GUEST_MEMORY: usize = 64 << 20;
/// The name of the file that guests' memory is in, as /proc/PID/smaps shows it.
const GUEST_FILE: &str = "memfd:guest-memory";
/// Descriptors that a guest takes in this process, with room to spare, and all others.
const DESCRIPTORS: [u64; 2] = [16, 64];
/// The most of the first and of the last VMs whose connections are compared.
const COMPARED: usize = 8;

/// The figures of idleness.
#[derive(Debug, Clone, Serialize)]
pub struct IdleReport {
    /// From the start of the process until its socket accepts connections, in milliseconds.
    pub start_ms: Summary,
    /// VMs of the larger process.
    pub vms: usize,
    /// Proportional memory of a process with one connected VM, without guest memory, in bytes.
    pub one_vm_bytes: u64,
    /// The same with all VMs connected.
    pub all_vms_bytes: u64,
    /// What a further VM takes, in bytes.
    pub per_vm_bytes: u64,
    /// The first VMs, and the last ones, that the next two figures are of: up to 8 each.
    pub compared_vms: usize,
    /// Until the first VMs' rings run, each from its front end's connection on, in milliseconds.
    pub first_ms: Summary,
    /// The same of the last VMs.
    pub last_ms: Summary,
    /// How long the connected, idle process was watched.
    pub watched_ms: u64,
    /// The CPU time that it used meanwhile, in nanoseconds.
    pub cpu_ns: u64,
}

/// Starts the back end `starts` times with one VM, then once with `vms` VMs, connects a guest to
/// each and leaves them alone for `watch`.
pub fn measure(
    program: &Path,
    vms: usize,
    starts: usize,
    watch: Duration,
    placement: &Placement,
) -> Result<IdleReport> {
    allow_descriptors(DESCRIPTORS[0] * vms as u64 + DESCRIPTORS[1])?;
    let mut times = Vec::new();
    let mut one_vm_bytes = 0;
    for start in 0..starts {
        let backend = BackendProcess::start(program, &BackendKind::zero_copy(), 1, placement)?;
        times.push(backend.start_time().as_secs_f64() * 1000.0);
        if start + 1 == starts {
            let _guests = connect(&backend, 1)?;
            one_vm_bytes = own_memory(&backend)?;
        }
    }
    let backend = BackendProcess::start(program, &BackendKind::zero_copy(), vms, placement)?;
    let (_guests, connected) = connect(&backend, vms)?;
    let some = COMPARED.min(vms.div_ceil(2));
    let all_vms_bytes = own_memory(&backend)?;
    let cpu = backend.idle_cpu(watch)?;
    Ok(IdleReport {
        start_ms: Summary::of(times).context("at least one start is needed")?,
        vms,
        one_vm_bytes,
        all_vms_bytes,
        compared_vms: some,
        first_ms: Summary::of(connected[..some].iter().copied()).context("no VM")?,
        last_ms: Summary::of(connected[vms - some..].iter().copied()).context("no VM")?,
        per_vm_bytes: all_vms_bytes.saturating_sub(one_vm_bytes) / (vms as u64 - 1).max(1),
        watched_ms: watch.as_millis() as u64,
        cpu_ns: cpu.as_nanos() as u64,
    })
}

/// The guests, and how long each took to connect, in milliseconds.
fn connect(backend: &BackendProcess, vms: usize) -> Result<(Vec<NetGuest>, Vec<f64>)> {
    let mut connected = Vec::new();
    let guests = (0..vms).map(|vm| {
        let begin = Instant::now();
        let guest = NetGuest::connect(&backend.socket(vm), GUEST_MEMORY);
        connected.push(begin.elapsed().as_secs_f64() * 1000.0);
        guest
    });
    let guests = guests.collect::<Result<Vec<NetGuest>>>()?;
    for vm in 0..vms {
        backend.link(vm)?;
    }
    Ok((guests, connected))
}

/// Proportional memory without that of guests, once the back end has gone to sleep.
pub(crate) fn own_memory(backend: &BackendProcess) -> Result<u64> {
    backend.clock()?.settled(Duration::from_secs(1))?;
    let bytes = backend.processes().into_iter().map(|pid| {
        let path = format!("/proc/{pid}/smaps");
        let text = std::fs::read_to_string(&path).with_context(|| format!("can't read {path}"))?;
        Ok(proportional_bytes(&text))
    });
    bytes.sum()
}

/// Adds up the Pss lines of all mappings but those of guest memory (proc_pid_smaps(5)).
fn proportional_bytes(smaps: &str) -> u64 {
    let mut guest = false;
    let mut total = 0;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Pss:"), Some(kilobytes)) if !guest => total += kilobytes.parse::<u64>().unwrap_or(0),
            // The head of a mapping: its first word is a range of addresses.
            (Some(range), Some(_)) if range.contains('-') && !range.ends_with(':') => {
                guest = line.contains(GUEST_FILE);
            }
            _ => {}
        }
    }
    total * 1024
}

/// Raises this process's limit of open files as far as it may itself. Fails when it stays below
/// `need`.
pub(crate) fn allow_descriptors(need: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= need) {
        return Ok(());
    }
    let raised = limit.maximum.map_or(need, |most| most.min(need));
    setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum })?;
    anyhow::ensure!(raised >= need, "{need} open files are needed and {raised} allowed: 'ulimit -Hn {need}'");
    Ok(())
}

impl IdleReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let some = self.compared_vms;
        let mib = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
        format!(
            "Idle: listens {:.1} ms after its start (max {:.1}); without guest memory {} with 1 VM, {} with {} VMs \
             ({} for a further one); rings run {:.2} ms after a front end connects to one of the first {some} VMs, {:.2} ms to \
             one of the last {some} (medians); {} us of CPU in {} ms with {} idle VMs.\n",
            self.start_ms.median,
            self.start_ms.max,
            mib(self.one_vm_bytes),
            mib(self.all_vms_bytes),
            self.vms,
            mib(self.per_vm_bytes),
            self.first_ms.median,
            self.last_ms.median,
            self.cpu_ns / 1000,
            self.watched_ms,
            self.vms
        )
    }
}

/// CPU time of a back end with a guest that is connected, has posted its receive buffers, and does
/// nothing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PortIdle {
    /// The variant.
    pub variant: String,
    /// How long it was watched, in milliseconds.
    pub watched_ms: u64,
    /// CPU time of all its threads, in nanoseconds.
    pub cpu_ns: u64,
    /// CPU time of the kernel thread of its port, in nanoseconds.
    pub kernel_thread_ns: u64,
    /// Both, in percent of one CPU.
    pub load_percent: f64,
}

impl PortIdle {
    /// From the times over `watch`.
    pub fn new(variant: &str, watch: Duration, cpu: Duration, kernel: Duration) -> Self {
        Self {
            variant: variant.to_owned(),
            watched_ms: watch.as_millis() as u64,
            cpu_ns: cpu.as_nanos() as u64,
            kernel_thread_ns: kernel.as_nanos() as u64,
            load_percent: percent((cpu + kernel).as_secs_f64(), watch.as_secs_f64()),
        }
    }

    /// One line.
    pub fn text(&self) -> String {
        format!(
            "Idle: {}: {} us of CPU in {} ms with a guest that waits for frames ({:.2} % of a CPU).\n",
            self.variant,
            (self.cpu_ns + self.kernel_thread_ns) / 1000,
            self.watched_ms,
            self.load_percent
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_memory_is_left_out() {
        let smaps = "5500-5600 r-xp 00000000 00:01 5 /bin/program\nRss: 900 kB\nPss: 100 kB\nPss_Dirty: 7 kB\n\
                     7f00-7f80 rw-s 00000000 00:01 9 /memfd:guest-memory (deleted)\nPss: 65536 kB\n\
                     7f90-7fa0 rw-p 00000000 00:00 0\nPss: 20 kB\nVmFlags: rd wr\n";
        assert_eq!(proportional_bytes(smaps), 120 * 1024);
    }

    #[test]
    fn the_load_is_of_one_cpu() {
        let millis = Duration::from_millis;
        let idle = PortIdle::new("zerowire xdp", millis(2000), millis(15), millis(5));
        assert_eq!(idle.load_percent, 1.0);
        assert!(idle.text().contains("20000 us of CPU in 2000 ms"));
        assert!(idle.text().contains("1.00 %"));
    }
}
