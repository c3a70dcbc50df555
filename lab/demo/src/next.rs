//! The line to try next on this machine, after a demonstration.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;
use zerowire_vmtest::backend;

use crate::story::Next;

/// What decides it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NextFacts {
    /// True: the demonstration ran as root.
    root: bool,
    /// The version of QEMU in PATH.
    qemu: Option<String>,
    /// True: the doctor has run a guest in /dev/kvm.
    kvm: bool,
    /// An Ethernet interface that the host has no use for.
    interface: Option<String>,
}

/// Which demonstration has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The one without a VM.
    Soft,
    /// The one with a guest under QEMU.
    Vm,
}

/// Asks `zerowire doctor` and says what comes after the demonstration. To be called before this
/// process enters a namespace of its own.
///
/// # Errors
/// The doctor does not start, or prints no JSON.
pub fn after(shown: Shown) -> Result<Next> {
    let output = Command::new(backend::program()?)
        .args(["doctor", "--path", "net", "--json"])
        .output()
        .context("can't start zerowire doctor")?;
    let report = serde_json::from_slice(&output.stdout).context("no JSON from zerowire doctor")?;
    let interface = unused_interface(Path::new("/"));
    Ok(choose(shown, &facts(&report, interface)))
}

fn facts(report: &Value, interface: Option<String>) -> NextFacts {
    let checks = report["checks"].as_array().into_iter().flatten();
    let check = |id: &str| checks.clone().find(|check| check["id"] == id);
    let qemu = check("vm.qemu").filter(|check| check["outcome"] != "missing");
    let version = qemu.and_then(|check| check["found"].as_str()?.split_whitespace().next());
    NextFacts {
        root: report["machine"]["euid"] == 0,
        qemu: version.map(ToOwned::to_owned),
        kvm: check("vm.kvm").is_some_and(|check| check["outcome"] == "ok"),
        interface,
    }
}

fn choose(shown: Shown, facts: &NextFacts) -> Next {
    let next = |why: &str, command: &str| Next { why: why.to_owned(), command: command.to_owned() };
    match (shown, &facts.interface, &facts.qemu) {
        (Shown::Vm, Some(interface), _) => Next {
            why: format!(
                "To try next here: {interface} has no address, so a guest can own its queues in place of a \
                 tap (docs/xdp.md). README.md has QEMU's line:"
            ),
            command: format!("target/release/zerowire net --socket /run/vm.sock --port xdp:{interface}"),
        },
        (Shown::Vm, None, _) if facts.kvm => next(
            "To try next here: a guest with a network and a shell for you, as in README.md, Quickstart. \
             KVM is here, and the page says how QEMU takes it:",
            "make guest",
        ),
        (Shown::Vm, None, _) => next(
            "To try next here: a guest with a network and a shell for you, as in README.md, Quickstart. \
             There is no KVM here, so QEMU emulates its CPU:",
            "make guest",
        ),
        (Shown::Soft, _, Some(version)) if facts.root => Next {
            why: format!(
                "To try next here: the same story with a stock Debian guest, QEMU {version} is here:"
            ),
            command: "make demo".to_owned(),
        },
        (Shown::Soft, _, None) if facts.root => next(
            "To try next here: the same story with a stock Debian guest. This installs QEMU and \
             downloads two kernels:",
            "make demo",
        ),
        (Shown::Soft, _, Some(_)) => next(
            "To try next here: a vsock device, which needs no root. docs/vsock.md has QEMU's line:",
            "target/release/zerowire vsock --socket vm.sock --cid 3 --uds vm",
        ),
        (Shown::Soft, _, None) => next(
            "To try next here: what this user can do without root and without QEMU, and how to get the rest:",
            "target/release/zerowire doctor",
        ),
    }
}

/// An Ethernet interface with a device behind it, up, with no address and in no bridge or bond.
/// Finds files below `root`.
fn unused_interface(root: &Path) -> Option<String> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let (routes, addresses) = (read("proc/net/route"), read("proc/net/if_inet6"));
    let is_unused = |name: &str| {
        let folder = root.join("sys/class/net").join(name);
        let is = |file: &str, wanted: &str| {
            std::fs::read_to_string(folder.join(file)).is_ok_and(|text| text.trim() == wanted)
        };
        // An address of IPv4 brings a route. IPv6 has a line an address, whose fourth word is its
        // scope: a local one (20) comes by itself.
        let is_routed = routes.lines().any(|line| line.split_whitespace().next() == Some(name));
        let has_address = addresses.lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.last() == Some(&name) && words.get(3) != Some(&"20")
        });
        let is_ethernet = is("type", "1") && !folder.join("phy80211").exists();
        let is_free = !folder.join("master").exists() && !is_routed && !has_address;
        is_ethernet && is_free && folder.join("device").exists() && is("operstate", "up")
    };
    let mut names: Vec<String> = std::fs::read_dir(root.join("sys/class/net"))
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_unused(name))
        .collect();
    names.sort();
    names.into_iter().next()
}

#[cfg(test)]
mod tests;
