//! Why a vsock server can't serve VMs.

use std::path::PathBuf;

use thiserror::Error;
use zerowire_vhost::serve::{RefusalKind, ServerRefusal, StartError};

/// Why a vsock server can't serve VMs. The text is what the user reads.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VsockServerError {
    /// For a reason that a server of any device may have.
    #[error(transparent)]
    Start(#[from] StartError),
    /// No guest can have this CID.
    #[error("VM {vm}: CID {cid} {why}: give one from 3 to 4294967294")]
    Cid {
        /// The VM.
        vm: String,
        /// Its CID.
        cid: u64,
        /// What the number means otherwise.
        why: &'static str,
    },
    /// Two VMs with one CID.
    #[error("VMs {other} and {vm} both have CID {cid}: give each its own")]
    CidTaken {
        /// The VM.
        vm: String,
        /// The one before.
        other: String,
        /// Their CID.
        cid: u64,
    },
    /// The process that is to serve a VM, and others that reach it, does not start.
    #[error("VM {vm}: its process: {text}")]
    Process {
        /// The VM, or the first one of several.
        vm: String,
        /// What is wrong.
        text: String,
    },
    /// A VM in groups of several threads that run.
    #[error(
        "VM {vm}: its groups connect VMs {stay} with {go}, and threads that run can't become one: remove {go}, add {vm}, and \
         add {go} again; or give it other groups (--groups)"
    )]
    Apart {
        /// The VM.
        vm: String,
        /// The VMs of one of these threads.
        stay: String,
        /// Those of the others.
        go: String,
    },
    /// A socket where a guest's connection to a port of the host arrives.
    #[error(
        "VM {vm}: socket path {} is where connections of VM {other}'s guest to port {port} arrive (its --uds and _PORT): give \
         another one, such as one in a directory of its own",
        path.display()
    )]
    PathOfPort {
        /// The VM.
        vm: String,
        /// The one whose guest would reach the socket, or the same.
        other: String,
        /// The port.
        port: u32,
        /// The path.
        path: PathBuf,
    },
    /// A socket of a VM on the control socket's path.
    #[error("VM {vm}: socket path {} is the control socket's (--control): give another one", path.display())]
    ControlTaken {
        /// The VM.
        vm: String,
        /// The path.
        path: PathBuf,
    },
    /// The control socket where a guest's connection to a port of the host arrives.
    #[error(
        "VM {vm}: the control socket {} is where connections of its guest to port {port} arrive (its --uds and _PORT), so the \
         guest would manage this process: give --control or --uds another path, such as one in a directory of its own",
        path.display()
    )]
    ControlOfPort {
        /// The VM.
        vm: String,
        /// The port.
        port: u32,
        /// The path.
        path: PathBuf,
    },
}

impl ServerRefusal for VsockServerError {
    fn kind(&self) -> RefusalKind {
        match self {
            Self::Start(e) => e.kind(),
            Self::Cid { .. } => RefusalKind::Malformed,
            Self::CidTaken { .. }
            | Self::Apart { .. }
            | Self::PathOfPort { .. }
            | Self::ControlTaken { .. }
            | Self::ControlOfPort { .. } => RefusalKind::Conflict,
            Self::Process { .. } => RefusalKind::Passing,
        }
    }
}
