//! Where blocks go: a file, which may be followed by others, or a stream.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use zerowire_wire::pcapng::whole_blocks;

use crate::options::{CaptureError, CaptureOptions, CaptureRotation, CaptureTarget};

/// How long to wait where a descriptor that does not block takes nothing.
const RETRY: Duration = Duration::from_millis(5);

/// An open file or stream.
#[derive(Debug)]
pub(crate) struct CaptureSink {
    out: File,
    /// What it writes to, in messages.
    pub target: CaptureTarget,
    rotation: Option<CaptureRotation>,
    /// True: its files are no links to others.
    no_links: bool,
    /// True: a regular file that was opened here.
    is_regular: bool,
    /// Bytes of the present file.
    written: u64,
}

impl CaptureSink {
    pub fn open(options: &CaptureOptions) -> Result<Self, CaptureError> {
        let failed = |cause| CaptureError::Open { target: options.target.clone(), cause };
        let out = match &options.target {
            CaptureTarget::Stdout => {
                io::stdout().as_fd().try_clone_to_owned().map(File::from).map_err(failed)?
            }
            CaptureTarget::File(path) => {
                create(path, options.no_links).map_err(|cause| match has_no_reader(path, &cause) {
                    true => CaptureError::NoReader(options.target.clone()),
                    false => failed(cause),
                })?
            }
        };
        let is_file = matches!(options.target, CaptureTarget::File(_));
        let is_regular = is_file && out.metadata().map_err(failed)?.is_file();
        if options.rotation.is_some() && !is_regular {
            return Err(CaptureError::NotAFile(options.target.clone()));
        }
        let (target, rotation, no_links) = (options.target.clone(), options.rotation, options.no_links);
        Ok(Self { out, target, rotation, no_links, is_regular, written: 0 })
    }

    /// Writes to what another process reads, named like `target` in messages.
    pub fn stream(out: File, target: CaptureTarget) -> Self {
        Self { out, target, rotation: None, no_links: false, is_regular: false, written: 0 }
    }

    /// Whether the present file would have too many bytes with as many more.
    pub fn is_full(&self, more: u64) -> bool {
        self.rotation.is_some_and(|rotation| self.written + more > rotation.bytes)
    }

    /// Writes blocks, and takes them from `blocks`. If that fails, a file ends with the last block
    /// that is whole, and those behind it are left.
    pub fn write(&mut self, blocks: &mut Vec<u8>) -> io::Result<()> {
        let mut done = 0;
        while done < blocks.len() {
            match self.out.write(&blocks[done..]) {
                Ok(0) => return self.cut(blocks, done, ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::park_timeout(RETRY),
                Err(e) => return self.cut(blocks, done, e),
            }
        }
        self.written += blocks.len() as u64;
        blocks.clear();
        Ok(())
    }

    /// Of the last blocks only `done` bytes were written.
    #[cold]
    fn cut(&self, blocks: &mut Vec<u8>, done: usize, error: io::Error) -> io::Result<()> {
        let whole: usize = whole_blocks(&blocks[..done]).map(<[u8]>::len).sum();
        if self.is_regular {
            // Without it the file ends with a part of a block, and readers say so.
            let _ = self.out.set_len(self.written + whole as u64);
        }
        blocks.drain(..whole);
        Err(error)
    }

    /// Begins with another file: FILE becomes FILE.1, which was FILE.2 before that, and so on. The
    /// oldest one goes.
    pub fn rotate(&mut self) -> io::Result<()> {
        let (CaptureTarget::File(path), Some(rotation)) = (&self.target, self.rotation) else {
            return Ok(());
        };
        for number in (1..rotation.files.saturating_sub(1)).rev() {
            match std::fs::rename(numbered(path, number), numbered(path, number + 1)) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        std::fs::rename(path, numbered(path, 1))?;
        (self.out, self.written) = (create(path, self.no_links)?, 0);
        Ok(())
    }
}

/// Frames are nobody's business but the owner's. A file that another process captures to is not
/// emptied. A pipe without a reader is not waited for (ENXIO). With `no_links` a file that has
/// other names stays as it is.
fn create(path: &Path, no_links: bool) -> io::Result<File> {
    let linked = |kind| io::Error::other(format!("it is a {kind} link to another file; give another name"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let flags = if no_links { OFlags::NONBLOCK | OFlags::NOFOLLOW } else { OFlags::NONBLOCK };
    let file = options.custom_flags(flags.bits() as i32).open(path).map_err(|e| {
        match no_links && Errno::from_io_error(&e) == Some(Errno::LOOP) {
            true => linked("symbolic"),
            false => e,
        }
    })?;
    // Writes wait.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    let metadata = file.metadata()?;
    if metadata.is_file() {
        if no_links && metadata.nlink() > 1 {
            return Err(linked("hard"));
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("another capture is being written to it"));
            }
            // A file system without locks.
            Err(TryLockError::Error(_)) | Ok(()) => {}
        }
        file.set_len(0)?;
    }
    Ok(file)
}

/// Whether it could not be opened since it is a pipe that nobody reads.
fn has_no_reader(path: &Path, cause: &io::Error) -> bool {
    Errno::from_io_error(cause) == Some(Errno::NXIO)
        && std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo())
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}
