//! The emulated machine: its parts and QEMU's command line.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::assets::{Kernel, KernelFiles, Qemu, QemuFiles};

/// PCI Express ports into which devices can be plugged.
pub const PORTS: usize = 4;

/// The name of the serial line's socket in QEMU.
pub(crate) const SERIAL: &str = "serial0";

/// Slots for memory modules.
const MEMORY_SLOTS: u32 = 4;

/// Upper bound for memory with all modules plugged.
const MEMORY_MAXIMUM_MIB: u32 = 4096;

/// The guest kernel's parameters. Memory that is plugged goes online by itself. A break on the
/// serial line asks the kernel (admin-guide/sysrq.rst). The answer shows whether the guest stands
/// still, or only a program in it. The kernel does not test its ciphers, which takes a tenth of a
/// boot's CPU time.
const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet panic=-1 mitigations=off \
    memhp_default_state=online sysrq_always_enabled cryptomgr.notests";

/// All that QEMU emulates, but for the flags by which Linux and the C library copy and clear memory
/// with `rep movsb` and `rep stosb`. QEMU emulates these byte by byte. Without SMAP the kernel's
/// accesses to a program's memory don't need translations of their own, and without LA57 each
/// translation has four levels, not five.
fn cpu(qemu: Qemu) -> &'static str {
    match qemu {
        Qemu::V7_2 => "max,-erms,-fsrm,-smap,-la57",
        Qemu::V10 => "max,-erms,-fsrm,-fsrs,-smap,-la57",
    }
}

/// What distinguishes machines; snapshots are kept for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    /// The guest's kernel.
    pub kernel: Kernel,
    /// The emulator.
    pub qemu: Qemu,
    /// Memory at start, MiB.
    pub memory_mib: u32,
    /// Virtual CPUs; a guest uses at most as many queue pairs.
    pub cpus: u32,
}

impl Machine {
    /// Two CPUs and as little memory as a guest with a 9000-byte MTU and two queues
    /// runs well with.
    pub fn new(kernel: Kernel, qemu: Qemu) -> Self {
        Self { kernel, qemu, memory_mib: 320, cpus: 2 }
    }

    /// A name for files, unique among machines.
    pub fn label(&self) -> String {
        format!("{}-{}-{}M-{}cpu", self.kernel, self.qemu, self.memory_mib, self.cpus)
    }

    /// The arguments that define the machine: two QEMUs that get equal ones can hand
    /// a saved state to each other. Sockets are left out.
    pub fn arguments(&self, kernel: &KernelFiles, initrd: &Path) -> Vec<OsString> {
        let memory = self.memory_mib;
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| {
            arguments.push(name.into());
            arguments.push(value);
        };
        add("-machine", "q35".into());
        add("-accel", "tcg,thread=multi".into());
        add("-cpu", cpu(self.qemu).into());
        add("-smp", self.cpus.to_string().into());
        add("-m", format!("{memory}M,slots={MEMORY_SLOTS},maxmem={MEMORY_MAXIMUM_MIB}M").into());
        // A vhost-user back end maps the guest's memory through this file.
        add("-object", format!("memory-backend-memfd,id=ram,size={memory}M,share=on").into());
        add("-numa", "node,memdev=ram".into());
        for port in 0..PORTS {
            let number = port + 1;
            add("-device", format!("pcie-root-port,id=port{port},chassis={number},slot={number}").into());
        }
        add("-kernel", kernel.image.clone().into());
        add("-initrd", initrd.into());
        add("-append", KERNEL_PARAMETERS.into());
        arguments
    }

    /// A command that starts the machine with its serial line and its control
    /// connection on sockets `serial` and `qmp` in `dir`. A reboot ends QEMU unless
    /// the test allows it later.
    pub fn command(&self, qemu: &QemuFiles, kernel: &KernelFiles, initrd: &Path, dir: &Path) -> Command {
        let socket = |name: &str| format!("{},server=on,wait=off", dir.join(name).display());
        let mut command = qemu.command();
        command.args(["-display", "none", "-nodefaults", "-action", "reboot=shutdown"]);
        command.args(self.arguments(kernel, initrd));
        command.arg("-chardev").arg(format!("socket,id={SERIAL},path={}", socket("serial")));
        command.arg("-serial").arg(format!("chardev:{SERIAL}"));
        command.arg("-qmp").arg(format!("unix:{}", socket("qmp")));
        command
    }
}
