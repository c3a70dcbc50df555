//! `--sandbox on`: a supervisor, and a confined child for each VM.
//!
//! ```text
//! supervisor                                          child of one VM
//!  configuration, control, metrics        channel      descriptors and nothing else
//!  opens taps and sockets, keeps them ◀───────────▶    vhost-user, virtqueues, frames
//! ```
//!
//! The supervisor reads nothing that a guest or a front end has written. It reads what a child
//! tells ([`message`]) and logs ([`crate::sandbox::lines`]), within bounds.

mod capture;
mod child;
mod keeper;
mod message;
mod metadata;
mod ports;
mod sessions;
mod sums;
mod supervisor;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use zerowire_capture::Capture;
use zerowire_cli::logging;
use zerowire_confine::Owner;
use zerowire_net::{ServerError, VmConfig};
use zerowire_vhost::serve::{StartError, inherit};

use super::NetArgs;
use crate::sandbox::{NOBODY, SandboxArg, owner};
use keeper::Common;
use supervisor::Supervisor;

/// The argument by which the program is a child. Only a supervisor gives it, so it is not in the
/// help.
const CHILD: &str = "--confined-child";

/// How a front end is kept from other VMs and from the host.
#[derive(Args, Clone, Debug)]
pub struct SandboxArgs {
    /// Serve each VM by a process of its own, without rights, files and network: a front end that
    /// takes it over harms its own VM alone. For taps and packet ports. See
    /// docs/sandbox.md.
    #[arg(long, value_name = "WHEN", default_value = "off")]
    sandbox: SandboxArg,
    /// User whom these processes belong to if this one is root: a name of /etc/passwd or a number.
    /// Default: 65534 (nobody). Only with --sandbox on.
    #[arg(long, value_name = "USER", value_parser = owner)]
    user: Option<Owner>,
}

impl SandboxArgs {
    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.sandbox == SandboxArg::On
    }

    /// Refuses what has no effect, or can't be had.
    pub(super) fn check(&self, args: &NetArgs) -> Result<()> {
        if !self.is_on() {
            return match self.user {
                Some(_) => {
                    bail!("--user names whom the processes of --sandbox on belong to: give that as well")
                }
                None => Ok(()),
            };
        }
        if args.postcopy {
            bail!(
                "--sandbox on with --postcopy: no confined process can offer that; leave one of the two out"
            );
        }
        Ok(())
    }

    /// Serves these VMs.
    pub(super) fn start(
        &self,
        log: &str,
        vms: Vec<VmConfig>,
        capture: Option<Arc<Capture>>,
    ) -> Result<Supervisor, ServerError> {
        for vm in &vms {
            check(vm).map_err(|text| StartError::Limit { vm: vm.name.clone(), text })?;
        }
        zerowire_net::check_vms(&vms.iter().collect::<Vec<_>>()).or_else(|e| match e {
            // Others may be added.
            ServerError::Start(StartError::Count(0)) => Ok(()),
            e => Err(e),
        })?;
        let inherited = inherit(vms.iter().map(|vm| (vm.name.as_str(), &vm.endpoint)))?;
        let owner = self.user.unwrap_or(NOBODY);
        let supervisor = Supervisor::new(Common { owner, log: logging::effective_level(log) }, capture);
        vms.into_iter().zip(inherited).try_for_each(|(vm, inherited)| supervisor.open(vm, inherited))?;
        Ok(supervisor)
    }
}

/// Refuses a VM that no child can serve.
fn check(vm: &VmConfig) -> Result<(), String> {
    ports::check(&vm.port)
}

/// Runs the program as a child if it was started as one.
pub fn child() -> Option<ExitCode> {
    crate::sandbox::is_child(CHILD).then(child::main)
}
