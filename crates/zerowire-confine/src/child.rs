//! A process that this one has started.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A process that this one has started and waits for. A drop leaves it as it is.
#[derive(Debug)]
pub struct ChildProcess {
    pid: Pid,
    /// Where it has ended. Its number may be that of another process then.
    status: Option<ExitStatus>,
}

impl ChildProcess {
    pub(crate) fn new(pid: Pid) -> Self {
        Self { pid, status: None }
    }

    /// Its number, which nobody else has until its end was waited for.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Ends it by SIGKILL. Nothing happens where its end was waited for.
    ///
    /// # Errors
    /// EPERM: it belongs to another user.
    pub fn kill(&self) -> io::Result<()> {
        if self.status.is_none() {
            kill_process(self.pid, Signal::KILL)?;
        }
        Ok(())
    }

    /// How it has ended; None where it runs.
    ///
    /// # Errors
    /// Those of waitpid(2).
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.wait_with(WaitOptions::NOHANG)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As there.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.wait_with(WaitOptions::empty())? {
                return Ok(status);
            }
        }
    }

    fn wait_with(&mut self, options: WaitOptions) -> io::Result<Option<ExitStatus>> {
        while self.status.is_none() {
            match waitpid(Some(self.pid), options) {
                Err(Errno::INTR) => {}
                ended => {
                    self.status = ended?.map(|(_, status)| ExitStatus::from_raw(status.as_raw()));
                    break;
                }
            }
        }
        Ok(self.status)
    }
}

impl From<Child> for ChildProcess {
    fn from(child: Child) -> Self {
        Self::new(Pid::from_child(&child))
    }
}
