//! How a child begins, whatever it serves.

use std::io;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use zerowire_confine::{ChildProcess, spawn_apart};

use super::channel::Channel;
use super::link::ANSWER_PATIENCE;

/// Starts this program as a child, with these arguments and standard descriptors.
///
/// # Errors
/// It can't be started.
pub(super) fn start_itself(arguments: &[&str], standard: [BorrowedFd<'_>; 3]) -> io::Result<ChildProcess> {
    spawn_apart(c"/proc/self/exe", arguments, standard)
}

/// What the process does as a child, and nothing before it: `serve` gets the channel to the
/// supervisor, which is standard input. If it fails, the supervisor is sent its error in `failed`.
pub(crate) fn run<W: Serialize>(
    failed: impl Fn(String) -> W,
    serve: impl FnOnce(&Arc<Channel>) -> Result<(), String>,
) -> ExitCode {
    // SAFETY: nothing was opened by this process yet.
    let closed = unsafe { zerowire_sys::rights::close_others(&[0, 1, 2]) };
    let outcome = closed.map_err(|e| e.to_string()).and_then(|()| {
        let channel = zerowire_sys::fd::duplicate(0).map_err(|e| e.to_string())?;
        let channel = Arc::new(Channel::of(channel));
        serve(&channel).inspect_err(|e| drop(channel.send(&failed(e.clone()), &[])))
    });
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Answers the supervisor, which waits for it no longer than this does.
pub(crate) fn answer(channel: &Channel, word: &impl Serialize) -> Result<(), String> {
    match channel.send_until(word, &[], Instant::now() + ANSWER_PATIENCE) {
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
        sent => sent.map_err(|e| e.to_string()),
    }
}
