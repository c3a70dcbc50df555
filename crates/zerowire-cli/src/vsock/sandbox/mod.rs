//! `--sandbox on`: a supervisor, and a confined child for each set of VMs that may reach each
//! other.
//!
//! ```text
//! supervisor                                          child of one group
//!  configuration, signals, statistics     channel      descriptors and nothing else
//!  opens sockets, keeps them,         ◀───────────▶    vhost-user, virtqueues, connections
//!  connects guests to host programs
//! ```
//!
//! The supervisor reads nothing that a guest, a front end or a host program has written. It reads
//! what a child tells ([`message`]) and logs ([`crate::sandbox::lines`]), within bounds.

mod child;
mod group;
mod message;
mod sums;
mod supervisor;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use zerowire_confine::Owner;

use super::VsockArgs;
use crate::sandbox::{NOBODY, SandboxArg, owner};
pub(super) use supervisor::VsockSupervisor;

/// The argument by which the program is a child.
const CHILD: &str = "--confined-vsock-child";

/// What users of other namespaces have in common.
const OVERFLOW_USER: u32 = 65534;

/// How a front end is kept from other VMs and from the host.
#[derive(Args, Clone, Debug)]
pub(super) struct VsockSandboxArgs {
    /// Serve VMs by processes without rights, files and network, one for those that may reach each
    /// other (--groups): a front end or a guest that takes one over harms no other VM. See
    /// docs/sandbox.md.
    #[arg(long, value_name = "WHEN", default_value = "off")]
    sandbox: SandboxArg,
    /// User whom these processes belong to if this one is root: a name of /etc/passwd or a number.
    /// Default: 65534 (nobody). Only with --sandbox on.
    #[arg(long, value_name = "USER", value_parser = owner)]
    user: Option<Owner>,
}

impl VsockSandboxArgs {
    /// Whether it is on.
    pub(super) fn is_on(&self) -> bool {
        self.sandbox == SandboxArg::On
    }

    /// Whom the processes belong to.
    pub(super) fn owner(&self) -> Owner {
        self.user.unwrap_or(NOBODY)
    }

    /// Refuses what has no effect, or can't be had.
    pub(super) fn check(&self, args: &VsockArgs) -> Result<()> {
        if !self.is_on() {
            return match self.user {
                Some(_) => {
                    bail!("--user names whom the processes of --sandbox on belong to: give that as well")
                }
                None => Ok(()),
            };
        }
        let map = args.map.policy()?;
        // In a user namespace these are all others.
        let is_root = rustix::process::geteuid().is_root();
        let names_all =
            map.allow.contains(&OVERFLOW_USER) || map.listen.iter().any(|l| l.user == OVERFLOW_USER);
        let refused = [
            (args.pcap.is_on(), "--pcap", "packets are in the processes of the VMs"),
            (
                args.control.is_on(),
                "--control or --metrics",
                "VMs that are in one process can't come and go, and nobody is told what they move",
            ),
            (
                map.share_guest_memory,
                "--share-guest-memory",
                "a confined process can't open the guest's memory for reading alone",
            ),
            (
                names_all && !is_root,
                "--map-allow or --map-listen 65534",
                "without root all other users have that number in a confined process",
            ),
        ];
        match refused.into_iter().find(|(given, ..)| *given) {
            Some((_, option, why)) => bail!("--sandbox on with {option}: {why}; leave one of the two out"),
            None => Ok(()),
        }
    }
}

/// Runs the program as a child if it was started as one.
pub fn child() -> Option<ExitCode> {
    crate::sandbox::is_child(CHILD).then(child::main)
}
