//! Ctrl-C: what a run has made is removed before the program ends.
//!
//! Processes need nothing: they die with this program (see [`crate::command`]). The
//! signal's handler only writes to a pipe; a thread does the work.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context, Result, bail};

use crate::netns;

/// The exit status that shells expect after SIGINT: 128 and the signal's number.
const STATUS: i32 = 130;

/// The pipe's end for the handler.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// From now on SIGINT, SIGTERM and SIGHUP remove this folder and the network
/// namespaces of this process, and end it.
///
/// # Errors
/// A system call fails.
pub fn remove_on_signal(folder: PathBuf) -> Result<()> {
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("make a pipe")?;
    // Never closed: the handler may run at any time.
    PIPE.store(writer.into_raw_fd(), Ordering::SeqCst);
    std::thread::Builder::new().name("interrupt".into()).spawn(move || wait(&reader, &folder))?;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        install(signal)?;
    }
    Ok(())
}

fn wait(reader: &OwnedFd, folder: &std::path::Path) {
    while let Err(rustix::io::Errno::INTR) = rustix::io::read(reader, &mut [0; 1]) {}
    eprintln!("\ninterrupted: removing {} and the network namespaces of this run", folder.display());
    if let Err(error) = netns::remove_own() {
        eprintln!("{error:#}");
    }
    if let Err(error) = std::fs::remove_dir_all(folder) {
        eprintln!("can't remove {}: {error}", folder.display());
    }
    std::process::exit(STATUS);
}

extern "C" fn on_signal(_: libc::c_int) {
    let fd = PIPE.load(Ordering::SeqCst);
    // SAFETY: write is async-signal-safe (signal-safety(7)); the byte lives long enough,
    // and the descriptor is never closed. A full pipe means that the news is out.
    unsafe { libc::write(fd, [0_u8].as_ptr().cast(), 1) };
}

fn install(signal: libc::c_int) -> Result<()> {
    // SAFETY: an all-zero sigaction is a valid value: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the action is initialised and its handler is async-signal-safe.
    if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
        bail!("signal {signal}: {}", std::io::Error::last_os_error());
    }
    Ok(())
}
