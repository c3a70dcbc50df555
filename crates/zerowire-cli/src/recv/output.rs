//! Where received bytes are written: straight from the area, several pieces a call.

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerowire::recv::Lease;
use zerowire_sys::fd::stdout_was_closed;

use crate::stop::TransferStop;

/// Pieces of a call, at most.
const PIECES: usize = 64;
/// How often to look for a signal while a pipe is full, or nobody reads it yet.
const TICK: Duration = Duration::from_millis(200);

/// Makes the output of each connection.
pub enum Outputs {
    /// Nothing is written.
    None,
    /// One connection, whose output is open.
    One(Option<Output>),
    /// A file a connection: the name before its number.
    Each(PathBuf),
}

/// The output of one connection.
pub struct Output {
    file: File,
    name: String,
}

impl Outputs {
    /// Opens what can be opened before anybody connects, so that errors show at once.
    pub fn open(to: Option<&Path>, connections: Option<usize>, stop: &TransferStop) -> Result<Self> {
        Ok(match to {
            None => Self::None,
            Some(path) if path.as_os_str() == "-" => Self::One(Some(Output::stdout()?)),
            Some(path) if connections == Some(1) => Self::One(Output::create(path, stop)?),
            Some(path) => Self::Each(path.to_owned()),
        })
    }

    /// The output of connection `number`, from 1 on, unless a signal came meanwhile.
    pub fn next(&mut self, number: u64, stop: &TransferStop) -> Result<Option<Output>> {
        match self {
            Self::None => Ok(None),
            Self::One(output) => Ok(output.take()),
            Self::Each(path) => {
                let mut name = path.clone().into_os_string();
                name.push(format!(".{number}"));
                Output::create(Path::new(&name), stop)
            }
        }
    }
}

impl Output {
    /// Makes the file. A pipe is waited for until somebody reads it. None: a signal came meanwhile.
    fn create(path: &Path, stop: &TransferStop) -> Result<Option<Self>> {
        let name = path.display().to_string();
        let is_pipe = path.metadata().is_ok_and(|m| m.file_type().is_fifo());
        let open = || match is_pipe {
            true => File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path),
            false => File::create(path),
        };
        loop {
            match open() {
                Err(e) if is_pipe && e.raw_os_error() == Some(libc::ENXIO) => {}
                Err(e) => return Err(e).with_context(|| format!("--to {name} can't be written")),
                Ok(file) => return Ok(Some(Self { file, name })),
            }
            if stop.signal().is_some() {
                return Ok(None);
            }
            std::thread::sleep(TICK);
        }
    }

    /// To standard output. A pipe is opened once more, not to block: the setting belongs to the
    /// open file, which others may share.
    fn stdout() -> Result<Self> {
        ensure!(!stdout_was_closed(), "--to -: standard output is closed; give --to FILE");
        let name = "standard output".to_owned();
        let fd = io::stdout().as_fd().try_clone_to_owned().with_context(|| name.clone())?;
        let file = File::from(fd);
        let is_pipe = file.metadata().is_ok_and(|m| m.file_type().is_fifo());
        let again = || {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path).ok()
        };
        let again = is_pipe.then(again).flatten();
        Ok(Self { file: again.unwrap_or(file), name })
    }

    /// Writes all of it. False: a signal came meanwhile, and the rest was not written.
    pub fn write(&mut self, leases: &[Lease], stop: &TransferStop) -> Result<bool> {
        for chunk in leases.chunks(PIECES) {
            let mut slices = [IoSlice::new(&[]); PIECES];
            for (slice, lease) in slices.iter_mut().zip(chunk) {
                *slice = IoSlice::new(lease);
            }
            let mut rest = &mut slices[..chunk.len()];
            while rest.iter().any(|s| !s.is_empty()) {
                match self.file.write_vectored(rest) {
                    Ok(0) => {
                        return Err(io::Error::from(io::ErrorKind::WriteZero)).with_context(|| self.what());
                    }
                    Ok(n) => IoSlice::advance_slices(&mut rest, n),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        if stop.signal().is_some() {
                            return Ok(false);
                        }
                        let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as _ };
                        let _ = poll(&mut [PollFd::new(&self.file, PollFlags::OUT)], Some(&tick));
                    }
                    Err(e) => return Err(e).with_context(|| self.what()),
                }
            }
        }
        Ok(true)
    }

    fn what(&self) -> String {
        format!("writing to {} failed", self.name)
    }
}
