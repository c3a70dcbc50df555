//! The machine that was measured, as far as it explains figures.

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
}
