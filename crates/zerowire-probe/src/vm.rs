//! Virtual machines to attach to: QEMU and KVM. Neither is needed for the back end to run.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::errno;
use super::{Finding, Group, Job, Subject, Todo};
use zerowire_sys::trial::kvm;

/// The only version of the interface since Linux 2.6.20 (Documentation/virt/kvm/api.rst).
const KVM_API: i32 = 12;

/// How long a QEMU may take to say its version.
const PATIENCE: Duration = Duration::from_secs(5);

const USERS: &[Job] = &[Job::Net, Job::Vsock];

pub(super) fn check(todo: &mut Todo) {
    let names = ["vm.qemu", "net, vsock: QEMU", "QEMU"];
    todo.add(Subject::new(Group::Vm, USERS, names), || translate_qemu(&find_qemu()));
    let names = ["vm.kvm", "net, vsock: KVM", "KVM"];
    todo.add(Subject::new(Group::Vm, USERS, names), || translate_kvm(try_kvm().map_err(errno::number)));
}

/// What /dev/kvm answers.
enum Kvm {
    /// It has another interface.
    Version(i32),
    /// A guest ended so: a `KVM_EXIT_…`, or the number of an error.
    Tried(Result<u32, i32>),
}

fn try_kvm() -> io::Result<Kvm> {
    let kvm = rustix::fs::open("/dev/kvm", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(match kvm::version(kvm.as_fd())? {
        KVM_API => Kvm::Tried(kvm::run_guest(kvm.as_fd()).map_err(errno::number)),
        other => Kvm::Version(other),
    })
}

fn translate_kvm(answer: Result<Kvm, i32>) -> Finding {
    let slow =
        "Guests run under TCG (-accel tcg): right, but some ten times slower. The back end does not care.";
    let broken = |found: String| {
        Finding::degraded(found, slow).remedy(
            "A nested machine may have a KVM that boots no stock kernel: ask its provider for nested virtualisation.",
        )
    };
    match answer {
        Ok(Kvm::Tried(Ok(kvm::HALTED))) => Finding::ok(
            format!("/dev/kvm runs a guest of three instructions, API {KVM_API}"),
            "QEMU can use -accel kvm, as far as a guest without a kernel can tell.",
        ),
        Ok(Kvm::Tried(Ok(reason))) => {
            broken(format!("/dev/kvm opens, and a guest of three instructions stops (exit reason {reason})"))
        }
        Ok(Kvm::Tried(Err(e))) => broken(errno::said("/dev/kvm opens, and runs no guest", e)),
        Ok(Kvm::Version(other)) => Finding::degraded(format!("API {other}, not {KVM_API}"), slow),
        Err(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Finding::degraded("no /dev/kvm", slow).remedy(
            "Turn virtualisation on (firmware, or nested virtualisation of the cloud), then 'modprobe kvm'.",
        ),
        Err(e) => Finding::degraded(errno::said("/dev/kvm can't be opened", e), slow).remedy(
            "Put the user into the group kvm, or pass the device to the container: --device /dev/kvm.",
        ),
    }
}

/// Each QEMU that was found, with the first line of its --version.
fn find_qemu() -> Vec<(PathBuf, Option<String>)> {
    let system = format!("qemu-system-{}", std::env::consts::ARCH);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<PathBuf> = std::env::split_paths(&path)
        .filter(|d| d.is_absolute())
        .flat_map(|d| [d.join(&system), d.join("qemu-kvm")])
        .chain([PathBuf::from("/usr/libexec/qemu-kvm")])
        .filter(|p| p.is_file())
        .filter_map(|p| p.canonicalize().ok())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
        .into_iter()
        .map(|p| {
            let version = version_of(&p);
            (p, version)
        })
        .collect()
}

fn version_of(program: &std::path::Path) -> Option<String> {
    let mut child = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let start = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut text = String::new();
    child.stdout.take()?.take(4096).read_to_string(&mut text).ok()?;
    number(&text).map(ToOwned::to_owned)
}

/// The number in "QEMU emulator version 7.2.22 (Debian …)".
fn number(text: &str) -> Option<&str> {
    let (_, rest) = text.lines().next()?.split_once("version ")?;
    rest.split([' ', '(']).next().filter(|n| n.starts_with(|c: char| c.is_ascii_digit()))
}

fn translate_qemu(found: &[(PathBuf, Option<String>)]) -> Finding {
    if found.is_empty() {
        return Finding::degraded(
            "none on PATH",
            "No guest can be booted here ('make demo-soft' and the benchmarks need none); another VMM that speaks \
             vhost-user, or a guest in another container, does as well.",
        )
        .remedy("Debian and Ubuntu: 'apt install qemu-system-x86'; Fedora: 'dnf install qemu-kvm'.");
    }
    let list: Vec<_> = found
        .iter()
        .map(|(p, v)| format!("{} ({})", v.as_deref().unwrap_or("version unknown"), p.display()))
        .collect();
    let majors: Vec<u32> =
        found.iter().filter_map(|(_, v)| v.as_ref()?.split('.').next()?.parse().ok()).collect();
    let found = list.join(", ");
    match majors.iter().max() {
        Some(7) => Finding::degraded(
            found,
            "Under TCG this version crashes on vhost-user-net with MSI-X; everything else works.",
        )
        .remedy("Add vectors=0 to -device virtio-net-pci, or install QEMU 10 (Debian 12: from backports)."),
        Some(_) => Finding::ok(
            found,
            "Attach guests with -netdev vhost-user or -device vhost-user-vsock-pci; 'zerowire net --help' and 'zerowire vsock \
             --help' show how.",
        ),
        None => Finding::degraded(found, "It did not tell its version within 5 s; it may not start at all.")
            .remedy("Run it with --version by hand."),
    }
}

#[cfg(test)]
mod tests;
