//! The machine that was measured, as far as it explains figures, and how much of it other programs
//! used meanwhile.
//!
//! CPU time of a frame stands a busy machine; rates, loads and round trips don't. So the report
//! says when others were at work.

use std::{fmt, fs};

use serde::{Deserialize, Serialize};

/// Kernel, CPU and memory; no name, address or user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Model of the first CPU.
    pub cpu: String,
    /// Online CPUs.
    pub cores: usize,
    /// Whether the CPU says that it is virtual.
    pub virtualised: bool,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

impl Machine {
    /// Describes this machine; what can't be read says so.
    pub fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpu: value(&cpuinfo, "model name").unwrap_or("unknown CPU").to_owned(),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count().max(1),
            virtualised: value(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_bytes: value(&meminfo, "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .unwrap_or(0)
                * 1024,
        }
    }
}

#[cfg(test)]
impl Machine {
    /// What reports of tests name.
    pub(crate) fn example() -> Self {
        let (kernel, cpu) = ("6.18.0".into(), "Some CPU".into());
        Self { kernel, cpu, cores: 2, virtualised: true, memory_bytes: 1 << 30 }
    }
}

/// The value of the first `key : value` line.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.cores == 1 { "CPU" } else { "CPUs" };
        write!(f, "Linux {}, {}, {} {unit}", self.kernel, self.cpu, self.cores)?;
        if self.virtualised {
            f.write_str(" (virtual)")?;
        }
        Ok(())
    }
}

/// The share of all CPUs above which the report warns.
const WARN_ABOVE: f64 = 0.05;

/// CPU time so far, in clock ticks (proc_stat(5), proc_pid_stat(5)).
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// All CPUs, idle time included.
    total: u64,
    /// All CPUs, idle time left out.
    busy: u64,
    /// This process and its children that have ended.
    own: u64,
}

impl Usage {
    /// Reads the counters; what can't be read counts as 0.
    pub fn now() -> Self {
        let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (total, busy) = machine_ticks(&machine);
        Self { total, busy, own: own_ticks(&own) }
    }

    /// The remark for the report, if others used more than a twentieth of the machine since `self`.
    pub fn remark(&self, now: &Self) -> Option<String> {
        let total = now.total.saturating_sub(self.total);
        let busy = now.busy.saturating_sub(self.busy);
        let share = busy.saturating_sub(now.own.saturating_sub(self.own)) as f64 / total.max(1) as f64;
        (share > WARN_ABOVE).then(|| {
            format!(
                "other programs used {:.0} % of the CPUs meanwhile: rates, loads and round trips are worse \
                 than on an idle machine",
                share * 100.0
            )
        })
    }
}

/// Total and busy ticks of the line `cpu`: user, nice, system, idle, iowait, irq, softirq, steal.
fn machine_ticks(stat: &str) -> (u64, u64) {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().take(8).map(|word| word.parse().unwrap_or(0)).collect();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    let total: u64 = ticks.iter().sum();
    (total, total - idle)
}

/// The sum of utime, stime, cutime and cstime, fields 14 to 17; the name before may hold blanks.
fn own_ticks(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    fields.split_whitespace().skip(11).take(4).map(|word| word.parse().unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_exact_key() {
        let text = "model\t\t: 2\nmodel name\t: A CPU\nMemTotal:  24 kB\n";
        assert_eq!(value(text, "model name"), Some("A CPU"));
        assert_eq!(value(text, "MemTotal"), Some("24 kB"));
        assert_eq!(value(text, "name"), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let machine = Machine::detect();
        assert!(machine.memory_bytes > 0);
        assert!(machine.to_string().starts_with("Linux "));
    }

    #[test]
    fn ticks_are_read_at_the_right_places() {
        assert_eq!(machine_ticks("cpu  10 1 20 60 5 2 1 1 0 0\ncpu0 9 9 9 9\n"), (100, 35));
        let stat = "7 (a (odd) name) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 0";
        assert_eq!(own_ticks(stat), 127);
        assert_eq!(machine_ticks(""), (0, 0));
    }

    #[test]
    fn only_others_count() {
        let start = Usage::default();
        let alone = Usage { total: 1000, busy: 500, own: 490 };
        assert_eq!(start.remark(&alone), None);
        let busy = Usage { total: 1000, busy: 900, own: 500 };
        assert!(start.remark(&busy).unwrap().contains("40 %"));
    }
}
