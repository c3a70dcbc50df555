//! What is sent: a mapped file that is lent where it lies, or buffers that are filled by reading.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerowire::area::{Area, AreaOptions, Lease, MappedFile};
use zerowire::send::{Payload, SendError};
use zerowire_sys::fd::stdin_was_closed;

/// Buffers for what can't be mapped. With those of 256 KiB they are 7 MiB, which an ordinary user
/// may register with io_uring: RLIMIT_MEMLOCK is 8 MiB by default, and also counts the ring, and
/// what else the user has locked.
const BUFFERS: usize = 28;

/// What is said of a mapped file that lacks bytes of the mapping.
const SHORTER: &str = "the file became shorter while it was sent";

/// Where the bytes come from.
pub enum SendSource {
    /// A regular file.
    File(Mapped),
    /// A pipe, a terminal, a device, a socket.
    Stream(Stream),
}

/// A regular file, lent page by page.
pub struct Mapped {
    file: MappedFile,
    /// The same open file.
    open: File,
    /// Where to go on; at first the position of the open file, which may be behind the end.
    at: u64,
    chunk: u64,
}

/// Bytes that are read into buffers.
pub struct Stream {
    file: File,
    areas: [Area; 1],
    ended: bool,
}

/// The next thing to send.
pub enum NextPayload {
    /// This.
    Payload(Payload),
    /// Nothing yet: wait until [`SendSource::input`] is readable.
    Nothing,
    /// Nothing more.
    End,
    /// All buffers are lent.
    NoBuffer,
    /// Reading failed.
    Failed(anyhow::Error),
}

/// What was opened.
pub struct Input {
    file: File,
    /// With the position in the file. None: it is read.
    mapped: Option<(MappedFile, u64)>,
}

impl Input {
    /// Opens a file, or standard input for `-`.
    pub fn open(path: &Path) -> Result<Self> {
        let (mut file, name) = if path.as_os_str() == "-" {
            ensure!(!stdin_was_closed(), "standard input is closed; give FILE");
            let stdin = std::io::stdin().as_fd().try_clone_to_owned();
            (File::from(stdin.context("can't duplicate standard input")?), "standard input".to_owned())
        } else {
            let name = path.display().to_string();
            (File::open(path).with_context(|| format!("can't open {name}"))?, name)
        };
        let meta = file.metadata().with_context(|| format!("can't look at {name}"))?;
        if meta.is_dir() {
            anyhow::bail!("{name} is a directory: give a file, or - for standard input");
        }
        if !meta.is_file() || meta.len() == 0 {
            return Ok(Self { file, mapped: None });
        }
        // A program that was handed an open file goes on where the one before stopped.
        let at = file.stream_position().with_context(|| format!("can't tell the position in {name}"))?;
        let open = file.try_clone().with_context(|| format!("can't duplicate {name}"))?;
        // What can't be mapped (sysfs, RLIMIT_AS) can be read.
        let mapped = MappedFile::new(open).ok().map(|mapped| (mapped, at));
        Ok(Self { file, mapped })
    }

    /// What is sent from it, `chunk` bytes at a time.
    pub fn source(self, chunk: usize) -> Result<SendSource> {
        let Self { file, mapped } = self;
        if let Some((mapped, at)) = mapped {
            return Ok(SendSource::File(Mapped { file: mapped, open: file, at, chunk: chunk as u64 }));
        }
        let options = AreaOptions::default().buffers(BUFFERS).buffer_bytes(chunk);
        let area = Area::new(options).context("no memory for buffers")?;
        Ok(SendSource::Stream(Stream { file, areas: [area], ended: false }))
    }
}

impl SendSource {
    /// The areas that payloads lie in.
    pub fn areas(&self) -> &[Area] {
        match self {
            Self::File(_) => &[],
            Self::Stream(s) => &s.areas,
        }
    }

    /// How many bytes there are, where that is known.
    pub fn total(&self) -> Option<u64> {
        match self {
            Self::File(m) => Some(m.file.len().saturating_sub(m.at)),
            Self::Stream(_) => None,
        }
    }

    /// The next payload. Never waits.
    pub fn next(&mut self) -> NextPayload {
        match self {
            Self::File(m) => m.next(),
            Self::Stream(s) => s.next(),
        }
    }

    /// What is read from, unless it is mapped.
    pub fn input(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::File(_) => None,
            Self::Stream(s) => Some(s.file.as_fd()),
        }
    }

    /// An error of sending, with what it says of the source.
    pub fn explain(&self, e: SendError) -> anyhow::Error {
        let is_fault = e.errno() == Some(libc::EFAULT);
        let e = anyhow::Error::from(e);
        match self {
            Self::File(_) if is_fault => e.context(SHORTER),
            _ => e,
        }
    }

    /// Checks, once all memory is back, that what was sent was there. The next program that reads
    /// the open file goes on behind that.
    ///
    /// # Errors
    /// A mapped file became shorter. The kernel sends zeros in place of the end of its last page.
    pub fn end(&mut self) -> Result<()> {
        if let Self::File(m) = self {
            let len = m.open.metadata().context("can't look at the file")?.len();
            ensure!(len >= m.file.len(), SHORTER);
            m.open.seek(SeekFrom::Start(m.at)).context("can't set the position in the file")?;
        }
        Ok(())
    }
}

impl Mapped {
    fn next(&mut self) -> NextPayload {
        let end = self.at.saturating_add(self.chunk).min(self.file.len());
        if end <= self.at {
            return NextPayload::End;
        }
        match self.file.slice(self.at..end) {
            Ok(slice) => {
                self.at = end;
                NextPayload::Payload(slice.into())
            }
            Err(e) => NextPayload::Failed(e.into()),
        }
    }
}

impl Stream {
    fn next(&mut self) -> NextPayload {
        if self.ended {
            return NextPayload::End;
        }
        let Some(buffer) = self.areas[0].lease() else { return NextPayload::NoBuffer };
        match self.fill(buffer) {
            Ok(next) => {
                self.ended = matches!(next, NextPayload::End);
                next
            }
            Err(e) => NextPayload::Failed(anyhow::Error::from(e).context("reading failed")),
        }
    }

    /// One read: what is there goes out at once, so that a person at a terminal need not fill a
    /// buffer.
    fn fill(&mut self, mut buffer: Lease) -> std::io::Result<NextPayload> {
        // The file is not made non-blocking: others may have it open, too.
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&now)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(NextPayload::Nothing),
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
        match self.file.read(&mut buffer) {
            Ok(0) => Ok(NextPayload::End),
            Ok(n) => {
                let fits = buffer.set_len(n);
                debug_assert!(fits, "a read of at most the buffer");
                Ok(NextPayload::Payload(buffer.into()))
            }
            Err(e)
                if matches!(e.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock) =>
            {
                Ok(NextPayload::Nothing)
            }
            Err(e) => Err(e),
        }
    }
}
