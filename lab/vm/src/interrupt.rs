//! Ctrl-C: what a run has made is removed before the program ends.
//!
//! Processes need nothing: they die with this program (see [`crate::command`]). The
//! signal's handler only writes to a pipe; a thread does the work.

use std::io::{self, PipeReader, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use zerowire_testkit::process::catch;

use crate::netns;

/// The exit status that shells expect after SIGINT: 128 and the signal's number.
const STATUS: i32 = 130;

/// From now on SIGINT, SIGTERM and SIGHUP remove this folder and the network
/// namespaces of this process, and end it.
///
/// # Errors
/// A system call fails.
pub fn remove_on_signal(folder: PathBuf) -> Result<()> {
    let (reader, writer) = io::pipe().context("make a pipe")?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || wait(reader, &folder))?;
    catch(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP], writer.into()).context("catch signals")
}

fn wait(mut reader: PipeReader, folder: &Path) {
    if reader.read_exact(&mut [0]).is_err() {
        return;
    }
    eprintln!("\ninterrupted: removing {} and the network namespaces of this run", folder.display());
    if let Err(error) = netns::remove_own() {
        eprintln!("{error:#}");
    }
    if let Err(error) = std::fs::remove_dir_all(folder) {
        eprintln!("can't remove {}: {error}", folder.display());
    }
    std::process::exit(STATUS);
}
