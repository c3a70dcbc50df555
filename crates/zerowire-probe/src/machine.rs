//! The machine and the user, as far as the checks depend on them. No name and no address.

use std::fs;

use serde::Serialize;

/// Capabilities that some path asks for, by their bit (include/uapi/linux/capability.h).
const CAPABILITIES: [(u32, &str); 8] = [
    (5, "CAP_KILL"),
    (6, "CAP_SETGID"),
    (7, "CAP_SETUID"),
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (14, "CAP_IPC_LOCK"),
    (21, "CAP_SYS_ADMIN"),
    (39, "CAP_BPF"),
];

/// The machine and the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MachineFacts {
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Processor architecture, as `uname -m` prints it.
    pub arch: String,
    /// Model of the first CPU.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cores: usize,
    /// Whether the CPU says that it is virtual.
    pub virtualised: bool,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Page size, bytes.
    pub page_bytes: usize,
    /// Effective user.
    pub euid: u32,
    /// Those effective capabilities that some path asks for.
    pub caps: Vec<&'static str>,
    /// Those that some path asks for and that are not effective.
    pub caps_absent: Vec<&'static str>,
    /// The user namespace is not the machine's first one: its capabilities count only for what it
    /// owns.
    pub nested_user: bool,
    /// A seccomp filter is on this thread.
    pub seccomp: bool,
}

impl MachineFacts {
    /// Describes the machine and the calling thread; what can't be read says so.
    pub fn detect() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let uname = rustix::system::uname();
        let (caps, caps_absent) = capabilities(value(&status, "CapEff").unwrap_or("0"));
        Self {
            kernel: uname.release().to_string_lossy().into_owned(),
            arch: uname.machine().to_string_lossy().into_owned(),
            cpu: value(&cpuinfo, "model name").unwrap_or("unknown CPU").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            virtualised: value(&cpuinfo, "flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            memory_bytes: 1024
                * value(&meminfo, "MemTotal")
                    .and_then(|t| t.split(' ').next()?.parse::<u64>().ok())
                    .unwrap_or(0),
            page_bytes: rustix::param::page_size(),
            euid: rustix::process::geteuid().as_raw(),
            caps,
            caps_absent,
            nested_user: is_nested(&fs::read_to_string("/proc/thread-self/uid_map").unwrap_or_default()),
            seccomp: value(&status, "Seccomp") == Some("2"),
        }
    }

    /// Whether the capability is effective, for this process's own user namespace.
    pub fn has(&self, capability: &str) -> bool {
        self.caps.contains(&capability)
    }
}

/// Whether a uid_map is of another user namespace than the first, which maps all 2^32 - 1 users to
/// themselves (user_namespaces(7)).
fn is_nested(uid_map: &str) -> bool {
    let fields: Vec<_> = uid_map.split_whitespace().collect();
    !fields.is_empty() && fields != ["0", "0", "4294967295"]
}

/// The value of the first line `key: value`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// Splits [`CAPABILITIES`] by a mask in hexadecimal.
fn capabilities(mask: &str) -> (Vec<&'static str>, Vec<&'static str>) {
    let mask = u64::from_str_radix(mask, 16).unwrap_or(0);
    let (held, absent): (Vec<_>, Vec<_>) = CAPABILITIES.iter().partition(|(bit, _)| mask >> bit & 1 == 1);
    let names = |v: Vec<&(u32, &'static str)>| v.into_iter().map(|(_, name)| *name).collect();
    (names(held), names(absent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_mask() {
        let (held, absent) = capabilities("0000000000003000");
        assert_eq!(held, ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
        assert_eq!(
            absent,
            ["CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_IPC_LOCK", "CAP_SYS_ADMIN", "CAP_BPF"]
        );
        assert!(capabilities("nonsense").0.is_empty());
    }

    #[test]
    fn nested_users_are_told_by_the_map() {
        assert!(!is_nested("         0          0 4294967295\n"));
        assert!(is_nested("         0      65534          1\n"));
        assert!(!is_nested(""));
    }

    #[test]
    fn this_machine_can_be_described() {
        let m = MachineFacts::detect();
        assert!(m.memory_bytes > 0 && m.cores > 0 && m.page_bytes >= 4096);
        assert!(m.kernel.contains('.'));
    }
}
