//! With the sandbox: a supervisor, and a confined child for each set of VMs that may reach each
//! other.
//!
//! ```text
//! supervisor                                          child of one group
//!  configuration, control, metrics        channel      descriptors and nothing else
//!  opens sockets, keeps them,         ◀───────────▶    vhost-user, virtqueues, connections
//!  connects guests to host programs
//! ```
//!
//! The supervisor reads nothing that a guest, a front end or a host program has written. It reads
//! what a child tells ([`message`]) and logs ([`crate::sandbox::lines`]), within bounds.

mod changes;
mod child;
mod group;
mod members;
mod message;
mod orders;
mod roster;
mod sums;
mod supervisor;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use rustix::thread::{CapabilitySet, capabilities};
use zerowire_confine::Owner;
use zerowire_vsock::VsockConfig;

use super::VsockArgs;
use crate::sandbox::{NOBODY, SandboxArg, owner};
use crate::service::is_connected;
pub(super) use supervisor::VsockSupervisor;

/// The argument by which the program is a child.
const CHILD: &str = "--confined-vsock-child";

/// How a front end is kept from other VMs and from the host.
#[derive(Args, Clone, Debug)]
pub(super) struct VsockSandboxArgs {
    /// Serve VMs by processes without rights, files and network, one for those that may reach each
    /// other (--groups): a front end or a guest that takes one over harms no other VM. See
    /// docs/sandbox.md.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    sandbox: SandboxArg,
    /// User whom these processes belong to if this one is root: a name of /etc/passwd or a number.
    /// Default: 65534 (nobody). Not with --sandbox off.
    #[arg(long, value_name = "USER", value_parser = owner)]
    user: Option<Owner>,
}

impl VsockSandboxArgs {
    /// Settles whether confined processes serve these VMs, which were [checked](Self::check).
    pub(super) fn settle(&self, args: &VsockArgs, vms: &[VsockConfig]) -> bool {
        let connected = || vms.iter().find(|vm| is_connected(&vm.endpoint)).map(connected);
        let refused =
            || Self::refusal(args).map_or_else(|e| Some(e.to_string()), |why| why.or_else(connected));
        self.sandbox.settle(refused)
    }

    /// Whom the processes belong to.
    pub(super) fn owner(&self) -> Owner {
        self.user.unwrap_or(NOBODY)
    }

    /// Refuses what has no effect, or can't be had.
    pub(super) fn check(&self, args: &VsockArgs) -> Result<()> {
        self.sandbox.check(self.user, Self::refusal(args)?)
    }

    /// Why no child can offer what was asked for.
    fn refusal(args: &VsockArgs) -> Result<Option<String>> {
        let map = args.map.policy()?;
        // A child that makes a user namespace knows one user by number: the one who started it.
        let is_admin = capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::SYS_ADMIN));
        let mut users = map.allow.iter().copied().chain(map.listen.iter().map(|l| l.user));
        let names_others = users.any(|user| Some(user) != map.own_user);
        let refused = [
            (
                map.share_guest_memory,
                "--share-guest-memory",
                "a confined process can't open the guest's memory for reading alone",
            ),
            (
                names_others && !is_admin,
                "--map-allow or --map-listen of another user",
                "without CAP_SYS_ADMIN a confined process can't tell other users apart",
            ),
        ];
        let refused = refused.into_iter().find(|(given, ..)| *given);
        Ok(refused.map(|(_, option, why)| format!("{option}: {why}; leave it out, or give --sandbox off")))
    }
}

/// Why no child serves this VM, whose front end is connected.
fn connected(vm: &VsockConfig) -> String {
    let endpoint = &vm.endpoint;
    format!("{endpoint}, which is connected: give a socket that listens, or --sandbox off")
}

/// Runs the program as a child if it was started as one.
pub fn child() -> Option<ExitCode> {
    crate::sandbox::is_child(CHILD).then(child::main)
}
