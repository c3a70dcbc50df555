//! The ledger of a back end as text, made from its statistics in JSON.

use std::fmt::Write as _;

use serde_json::Value;

use zerowire_cli::bar::bytes_text;

/// One way through the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the guest to the port (the device's transmit queues).
    FromGuest,
    /// From the port to the guest (the device's receive queues).
    ToGuest,
}

impl Way {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::FromGuest, Self::ToGuest];

    /// The statistics of this way in those of a VM.
    pub fn of(self, vm: &Value) -> &Value {
        &vm[match self {
            Self::FromGuest => "transmit",
            Self::ToGuest => "receive",
        }]
    }

    /// How tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::FromGuest => "guest to host",
            Self::ToGuest => "host to guest",
        }
    }
}

/// CPU time of the back end for each gigabyte (10⁹ bytes) that it moved between two
/// statistics, seconds; None if it moved nothing.
pub fn cpu_seconds_a_gigabyte(before: &Value, after: &Value, way: Way) -> Option<f64> {
    let bytes = |all: &Value| way.of(&all["vms"][0])["bytes"].as_u64();
    let cpu = |all: &Value| all["cpu_seconds"].as_f64();
    let moved = bytes(after)?.checked_sub(bytes(before)?).filter(|moved| *moved > 0)?;
    Some((cpu(after)? - cpu(before)?) * 1e9 / moved as f64)
}

/// The table of a VM's traffic through `zerowire net`, with the CPU time a gigabyte where it was
/// measured.
pub fn table(vm: &Value, cpu: &[(Way, f64)]) -> String {
    table_of("zerowire net", "frames", vm, cpu)
}

/// The same for another `program`, which counts `units`.
pub fn table_of(program: &str, units: &str, vm: &Value, cpu: &[(Way, f64)]) -> String {
    let mut text = format!("{:<14} {units:>9} {:>10} {:>20} {:>19}\n", "", "bytes", "zero-copied", "copied");
    for way in Way::BOTH {
        let counts = way.of(vm);
        let count = |name: &str| counts[name].as_u64().unwrap_or(0);
        let (bytes, zero_copied) = (count("bytes"), count("zero_copied_bytes"));
        let copied = bytes.saturating_sub(zero_copied);
        let _ = writeln!(
            text,
            "{:<14} {:>9} {:>10} {:>20} {:>19}",
            way.name(),
            count("frames"),
            bytes_text(bytes),
            share(zero_copied, bytes),
            share(copied, bytes)
        );
    }
    for way in Way::BOTH {
        let copied = list(&way.of(vm)["copied_bytes"], bytes_text);
        if copied != "-" {
            let _ = writeln!(text, "why copied, {}: {copied}", way.name());
        }
    }
    for way in Way::BOTH {
        let dropped = list(&way.of(vm)["dropped_frames"], |n| n.to_string());
        if dropped != "-" {
            let _ = writeln!(text, "dropped {units}, {}: {dropped}", way.name());
        }
    }
    for (way, seconds) in cpu {
        let _ = writeln!(text, "CPU time of {program}, {}: {seconds:.3} s a gigabyte", way.name());
    }
    if let Some(copies) = vm["kernel_copies"].as_str() {
        let _ = writeln!(text, "copies by the kernel, not in this table: {copies}");
    }
    text
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => bytes_text(part),
        _ => format!("{} ({:.2} %)", bytes_text(part), part as f64 * 100.0 / whole as f64),
    }
}

fn list(map: &Value, number: fn(u64) -> String) -> String {
    let items = map.as_object().into_iter().flatten();
    let words: Vec<String> =
        items.map(|(reason, n)| format!("{reason} {}", number(n.as_u64().unwrap_or(0)))).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests;
