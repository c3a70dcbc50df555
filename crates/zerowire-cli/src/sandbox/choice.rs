//! Whether VMs are served by confined processes, which is settled once, at the start.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::AsFd;
use std::process::{ExitCode, ExitStatus};
use std::sync::OnceLock;

use anyhow::{Result, bail};
use clap::ValueEnum;
use zerowire_confine::{ConfinePlan, Owner, confine};
use zerowire_sys::allowed::OF_A_PROGRAM;

use super::child::start_itself;
use super::{NOBODY, is_child};

/// The argument by which the program tries whether it can be confined.
const TRIAL: &str = "--confined-trial";

/// Why the VMs of this process are not confined; None inside where they are.
static OBSTACLE: OnceLock<Option<String>> = OnceLock::new();

/// Whether VMs are served by confined processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SandboxArg {
    /// Processes of their own, which have what is open for them and nothing else.
    On,
    /// Threads of this process.
    Off,
    /// As with on. Where that can't serve what was asked for, a warning says why, and it is as with
    /// off.
    #[default]
    Auto,
}

impl SandboxArg {
    /// Refuses what has no effect, such as a `user`, or can't be had, for the reason in `refusal`.
    pub(crate) fn check(self, user: Option<Owner>, refusal: Option<String>) -> Result<()> {
        match (self, refusal) {
            (Self::On, Some(why)) => bail!(refused(&why)),
            (Self::Off, _) if user.is_some() => {
                bail!("--user names whom confined processes belong to: --sandbox off has none")
            }
            _ => Ok(()),
        }
    }

    /// Settles whether confined processes serve the VMs. `obstacle` says why they can't; nobody
    /// asks it with `on`, whose arguments were checked.
    pub(crate) fn settle(self, obstacle: impl FnOnce() -> Option<String>) -> bool {
        let why = match self {
            Self::On => None,
            Self::Off => Some("--sandbox off".to_owned()),
            Self::Auto => obstacle().or_else(|| try_out().err()),
        };
        if let (Self::Auto, Some(why)) = (self, &why) {
            tracing::warn!("the VMs are not confined: {why}");
        }
        OBSTACLE.get_or_init(|| why).is_none()
    }
}

/// The error where `--sandbox on` was given, and can't be had for this reason.
pub(crate) fn refused(why: &str) -> String {
    format!("--sandbox on with {why}")
}

/// Why the VMs are not confined. None before that is settled, and where they are.
pub(crate) fn obstacle() -> Option<&'static str> {
    OBSTACLE.get()?.as_deref()
}

/// Whether this platform starts a process and confines it. Layers that it may lack don't count.
fn try_out() -> Result<(), String> {
    let why = match run_trial() {
        Ok((status, _)) if status.success() => return Ok(()),
        Ok((status, said)) if said.is_empty() => format!("it ended: {status}"),
        Ok((_, said)) => said,
        Err(e) => format!("/proc/self/exe can't be started: {e}"),
    };
    Err(format!("no confined process can be had: {why}; see 'zerowire doctor', or give --sandbox off"))
}

/// How the trial ended, and what it said.
fn run_trial() -> io::Result<(ExitStatus, String)> {
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let (mut output, their_output) = io::pipe()?;
    let standard = [nothing.as_fd(), their_output.as_fd(), nothing.as_fd()];
    let mut child = start_itself(&["zerowire: trial", TRIAL], standard)?;
    drop(their_output);
    let mut said = Vec::new();
    output.read_to_end(&mut said)?;
    Ok((child.wait()?, String::from_utf8_lossy(&said).into_owned()))
}

/// Runs the program as a trial if it was started as one.
pub fn trial() -> Option<ExitCode> {
    is_child(TRIAL).then(|| {
        match confine(&ConfinePlan { owner: NOBODY, calls: &[OF_A_PROGRAM], without: &[] }) {
            Ok(_) => ExitCode::SUCCESS,
            Err(e) => {
                let _ = write!(io::stdout(), "{e}");
                ExitCode::FAILURE
            }
        }
    })
}
