//! A program that runs to its end: what that took.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::cpu::{Placement, ProcessClock};
use crate::held::Held;

/// How long it may take.
const LIMIT: Duration = Duration::from_secs(120);

/// What it took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    /// CPU time of all its threads, from its start on.
    pub(super) cpu: Duration,
    /// From its start to its end.
    pub(super) wall: Duration,
}

/// Runs `command` on the CPUs that are not the driver's. Its output goes to a file in the folder of
/// `held`.
///
/// # Errors
/// It can't be started, ends with another status than 0, or takes too long.
pub(super) fn run(command: &mut Command, held: &Held, placement: &Placement) -> Result<Ended> {
    let path = held.folder().join("log");
    let log = File::create(&path)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    placement.avoid_driver()?;
    let begin = Instant::now();
    let child = held.spawn(command);
    placement.pin_driver()?;
    let mut child = child.with_context(|| format!("can't start {}", command.get_program().display()))?;
    let watched = wait(child.id(), begin);
    if watched.is_err() {
        // Whether it has ended meanwhile doesn't matter.
        let _ = held.stop(&mut child);
    }
    let ended = watched?;
    let status = loop {
        if let Some(status) = held.try_wait(&mut child)? {
            break status;
        }
    };
    if !status.success() {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let last = text.trim().lines().last().unwrap_or("it wrote nothing");
        bail!("{} ended with {status}: {last}", command.get_program().display());
    }
    Ok(ended)
}

/// Waits until process `pid` has ended. It is not reaped, so that its clock can still be read.
fn wait(pid: u32, begin: Instant) -> Result<Ended> {
    let clock = ProcessClock::of(pid)?;
    let process = Pid::from_raw(pid as i32).context("no process number")?;
    let watch = pidfd_open(process, PidfdFlags::empty())?;
    let limit = Timespec { tv_sec: LIMIT.as_secs() as _, tv_nsec: 0 };
    if poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&limit))? == 0 {
        bail!("it runs after {} s", LIMIT.as_secs());
    }
    let wall = begin.elapsed();
    Ok(Ended { cpu: clock.now()?, wall })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_its_cpu_time_and_its_status() {
        let held = Held::temporary().unwrap();
        let placement = Placement::detect().unwrap();
        let shell = |script: &str| run(Command::new("sh").args(["-c", script]), &held, &placement);
        let work = shell("i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done").unwrap();
        assert!(work.cpu > Duration::from_millis(1), "{work:?}");
        let idle = shell("sleep 0.3").unwrap();
        assert!(idle.wall >= Duration::from_millis(300) && idle.cpu < idle.wall, "{idle:?}");
        let error = shell("echo no such thing >&2; exit 3").unwrap_err().to_string();
        assert!(error.contains("no such thing") && error.contains('3'), "{error}");
    }
}
