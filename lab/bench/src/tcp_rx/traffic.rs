//! Memory traffic by hardware counters, where the machine has them (perf_event_open(2)).
//!
//! Best are the memory controllers' own counts of cache lines read and written: `uncore_imc_*` of
//! Intel's server CPUs, `amd_umc_*` of AMD's from Zen 4 on. They hold what a NIC writes as well,
//! and all other programs. Else the receiving thread's last-level cache misses count, a cache line
//! each. A virtual machine usually has neither.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::{fs, io};

use anyhow::Result;

use crate::sys;

/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;
const PERF_TYPE_HARDWARE: u32 = 0;
const PERF_COUNT_HW_CACHE_MISSES: u64 = 3;
/// `umc_cas_cmd.all`: reads and writes. The kernel has no names for this unit's events (perf's
/// list, amdzen4/memory-controller.json).
const UMC_CAS_ALL: u64 = 0x0a;
const DEVICES: &str = "/sys/bus/event_source/devices";

/// Open counters.
#[derive(Debug)]
pub struct Traffic {
    counters: Vec<OwnedFd>,
    /// What is counted.
    pub what: String,
}

impl Traffic {
    /// Opens what this machine has, for the calling thread. The error says why nothing is counted,
    /// as words for the report.
    pub fn open() -> Result<Self, String> {
        let controllers = controllers(Path::new(DEVICES));
        let why_not = if controllers.is_empty() {
            "no counters of memory controllers".to_owned()
        } else {
            let open = |c: &Controller| sys::perf_counter(c.kind, c.config, None, Some(c.cpu));
            match controllers.iter().map(open).collect::<io::Result<Vec<_>>>() {
                Ok(counters) => {
                    let what = "all reads and writes of the memory controllers, of all programs and devices";
                    return Ok(Self { counters, what: what.to_owned() });
                }
                Err(e) => {
                    format!("counters of memory controllers: {e} (kernel.perf_event_paranoid, CAP_PERFMON)")
                }
            }
        };
        match sys::perf_counter(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CACHE_MISSES, Some(0), None) {
            Ok(counter) => Ok(Self {
                counters: vec![counter],
                what: "last-level cache misses of the receiving thread, 64 bytes each".to_owned(),
            }),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                Err(format!("{why_not}, and this CPU, or its hypervisor, has no counter of cache misses"))
            }
            Err(e) => Err(format!("{why_not}; cache misses: {e}")),
        }
    }

    /// Bytes so far.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut lines = 0u64;
        for counter in &self.counters {
            let mut value = [0; 8];
            let n = rustix::io::read(counter.as_fd(), &mut value)?;
            if n != value.len() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            lines = lines.wrapping_add(u64::from_ne_bytes(value));
        }
        Ok(lines.wrapping_mul(LINE_BYTES))
    }
}

/// A count of one memory controller.
#[derive(Debug, PartialEq, Eq)]
struct Controller {
    kind: u32,
    config: u64,
    cpu: u32,
}

/// The reads and writes of each controller in `devices`.
fn controllers(devices: &Path) -> Vec<Controller> {
    let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
    let mut all = Vec::new();
    for path in entries.flatten().map(|e| e.path()) {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let is_amd = name.starts_with("amd_umc_");
        let is_controller = is_amd || name.starts_with("uncore_imc_");
        let text = |name: &str| fs::read_to_string(path.join(name)).ok();
        let Some(kind) = text("type").and_then(|t| t.trim().parse().ok()).filter(|_| is_controller) else {
            continue;
        };
        // One CPU a socket.
        let cpus: Vec<u32> =
            text("cpumask").map_or(Vec::new(), |t| t.trim().split(',').flat_map(str::parse).collect());
        let named = || ["events/cas_count_read", "events/cas_count_write"].map(|e| config(&text(e)?));
        for config in if is_amd { [Some(UMC_CAS_ALL), None] } else { named() }.into_iter().flatten() {
            all.extend(cpus.iter().map(|&cpu| Controller { kind, config, cpu }));
        }
    }
    all
}

/// `event=0x04,umask=0x03` as a number: the event in the lowest byte, the mask in the one above.
fn config(text: &str) -> Option<u64> {
    let mut config = 0;
    for part in text.trim().split(',') {
        let (name, value) = part.split_once('=')?;
        let value = u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()?;
        config |= match name {
            "event" if value < 256 => value,
            "umask" if value < 256 => value << 8,
            _ => return None,
        };
    }
    Some(config)
}

#[cfg(test)]
mod tests;
