//! With the sandbox: a supervisor, and a confined child for each VM.
//!
//! ```text
//! supervisor                                          child of one VM
//!  configuration, control, metrics        channel      descriptors and nothing else
//!  opens taps and sockets, keeps them ◀───────────▶    vhost-user, virtqueues, frames
//! ```
//!
//! The supervisor reads nothing that a guest or a front end has written. It reads what a child
//! tells ([`message`]) and logs ([`crate::sandbox::lines`]), within bounds.

mod changing;
mod child;
mod message;
mod metadata;
mod pace;
mod ports;
mod sums;
mod supervisor;
mod vm;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use zerowire_capture::Capture;
use zerowire_cli::logging;
use zerowire_confine::Owner;
use zerowire_net::{ServerError, VmConfig};
use zerowire_vhost::memory::PinBudget;
use zerowire_vhost::serve::{StartError, inherit};

use super::NetArgs;
use crate::sandbox::cpu::CpuSum;
use crate::sandbox::{NOBODY, SandboxArg, owner, refused};
use supervisor::Supervisor;
use vm::Common;

/// The argument by which the program is a child. Only a supervisor gives it, so it is not in the
/// help.
const CHILD: &str = "--confined-child";

/// How a front end is kept from other VMs and from the host.
#[derive(Args, Clone, Debug)]
pub struct SandboxArgs {
    /// Serve each VM by a process of its own, without rights, files and network: a front end that
    /// takes it over harms its own VM alone. See docs/sandbox.md.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    sandbox: SandboxArg,
    /// User whom these processes belong to if this one is root: a name of /etc/passwd or a number.
    /// Default: 65534 (nobody). Not with --sandbox off.
    #[arg(long, value_name = "USER", value_parser = owner)]
    user: Option<Owner>,
}

impl SandboxArgs {
    /// Settles whether confined processes serve these VMs, which were [checked](Self::check).
    pub(super) fn settle(&self, args: &NetArgs, vms: &[VmConfig]) -> bool {
        self.sandbox.settle(|| {
            let of_vms = || vms.iter().find_map(|vm| check(vm).err().or_else(|| pins_less(vm)));
            refusal(args).or_else(of_vms)
        })
    }

    /// Refuses what has no effect, or can't be had.
    pub(super) fn check(&self, args: &NetArgs) -> Result<()> {
        self.sandbox.check(self.user, refusal(args))
    }

    /// Serves these VMs.
    pub(super) fn start(
        &self,
        log: &str,
        vms: Vec<VmConfig>,
        capture: Option<Arc<Capture>>,
    ) -> Result<Supervisor, ServerError> {
        for vm in &vms {
            check(vm).map_err(|why| StartError::Limit { vm: vm.name.clone(), text: refused(&why) })?;
        }
        zerowire_net::check_vms(&vms.iter().collect::<Vec<_>>())?;
        let inherited = inherit(vms.iter().map(|vm| (vm.name.as_str(), &vm.endpoint)))?;
        let owner = self.user.unwrap_or(NOBODY);
        let common = Common { owner, log: logging::effective_level(log), cpu: CpuSum::default() };
        let supervisor = Supervisor::new(common, capture);
        vms.into_iter().zip(inherited).try_for_each(|(vm, inherited)| supervisor.open(vm, inherited))?;
        Ok(supervisor)
    }
}

/// Why no child can offer what was asked for.
fn refusal(args: &NetArgs) -> Option<String> {
    let why = "--postcopy: no confined process can offer that; leave it out, or give --sandbox off";
    args.postcopy.then(|| why.to_owned())
}

/// Refuses a VM that no child can serve.
fn check(vm: &VmConfig) -> Result<(), String> {
    let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let port = &vm.port;
    let checked = port.check_descriptors(allowed);
    checked.map_err(|why| format!("port {port}: {why}, or --sandbox off"))
}

/// Why a child can pin less of this VM's memory than this process can. With `--sandbox on` it may
/// be enough.
fn pins_less(vm: &VmConfig) -> Option<String> {
    let port = &vm.port;
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let is_bound = has.contains(CapabilitySet::IPC_LOCK) && !has.contains(CapabilitySet::SYS_RESOURCE);
    // As much as --memlock allows.
    let wanted = PinBudget::of_process().bound();
    let limit =
        getrlimit(Resource::Memlock).maximum.filter(|most| port.pins() && is_bound && *most < wanted)?;
    Some(format!(
        "port {port}: without CAP_SYS_RESOURCE a confined process pins {limit} bytes at most; raise that ('ulimit -l \
         unlimited', or LimitMEMLOCK= in a unit), or give --sandbox off"
    ))
}

/// Runs the program as a child if it was started as one.
pub fn child() -> Option<ExitCode> {
    crate::sandbox::is_child(CHILD).then(child::main)
}
