//! How a command ended, and where its result is written.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use zerowire_sys::fd::stdout_was_closed;

use crate::columns::{PLAIN_WIDTH, fit, width};
use crate::{WrongArguments, logging};

/// Bytes of an earlier result at most.
const MAX_RESULT_BYTES: u64 = 16 << 20;

/// The keys that the results of all transfers have.
#[derive(Deserialize)]
struct EarlierResult {
    #[serde(rename = "bytes")]
    _bytes: IgnoredAny,
    #[serde(rename = "cpu_seconds")]
    _cpu_seconds: IgnoredAny,
    #[serde(rename = "ledger")]
    _ledger: IgnoredAny,
}

/// The status that `program` ends with: 2 for wrong arguments, as clap has it. An error goes to
/// standard error.
pub fn status(program: &str, result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|e| {
        logging::report(program, &format!("{e:#}"));
        if e.is::<WrongArguments>() { ExitCode::from(2) } else { ExitCode::FAILURE }
    })
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As the arguments say.
    Complete,
    /// Something failed.
    Failed,
    /// A signal came.
    Interrupted,
}

/// Where the result goes.
#[derive(Clone, Copy, Debug)]
pub struct Destination<'a> {
    /// As JSON, if that goes somewhere; else as text.
    pub json: &'a JsonOutput,
    /// No text.
    pub quiet: bool,
    /// Text goes to standard error, since something else went to standard output.
    pub stdout_taken: bool,
}

/// Where a result goes as JSON.
#[derive(Debug)]
pub enum JsonOutput {
    /// Nowhere.
    None,
    /// To standard output, as one line.
    Stdout,
    /// To a file, which keeps what it has until then.
    File(File, PathBuf),
}

impl JsonOutput {
    /// To this path, `-`: to standard output. `others` are files that the command reads or writes.
    ///
    /// # Errors
    /// It can't be written. [`WrongArguments`]: it is one of the others, or has something else than
    /// an earlier result.
    pub fn open(path: Option<&Path>, others: &[&Path]) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::None) };
        if path.as_os_str() == "-" {
            ensure!(!stdout_was_closed(), "--json -: standard output is closed; give --json FILE");
            return Ok(Self::Stdout);
        }
        let cant = || format!("can't write {}", path.display());
        // Of a pipe nothing may be read.
        let is_file = path.metadata().map_or(true, |metadata| metadata.is_file());
        let mut options = OpenOptions::new();
        let file = options.read(is_file).write(true).create(true).open(path).with_context(cant)?;
        if is_file {
            let own = file.metadata().with_context(cant)?;
            let is_own =
                |other: &&Path| other.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (own.dev(), own.ino()));
            let wrong = if others.iter().any(is_own) {
                "is read or written by this command already"
            } else if own.len() > 0 && !is_result(&file) {
                "is there and is no earlier result"
            } else {
                return Ok(Self::File(file, path.to_owned()));
            };
            let path = path.display();
            return Err(WrongArguments::because(anyhow!(
                "--json {path}: the file {wrong}; give another one"
            )));
        }
        Ok(Self::File(file, path.to_owned()))
    }

    /// Writes a result there.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write<R: Serialize>(&self, result: &R) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Stdout => print(result),
            Self::File(file, path) => {
                let text = serde_json::to_string_pretty(result)? + "\n";
                replace(file, path, text.as_bytes())
                    .with_context(|| format!("can't write {}", path.display()))
            }
        }
    }
}

/// Whether a file has the result of a transfer.
fn is_result(file: &File) -> bool {
    let mut text = Vec::new();
    let read = file.take(MAX_RESULT_BYTES).read_to_end(&mut text);
    read.is_ok() && serde_json::from_slice::<EarlierResult>(&text).is_ok()
}

/// Writes `text` to the file at `path`. What it has stays if the disk has no room for the text.
///
/// # Errors
/// It can't be written.
pub fn write_file(path: &Path, text: &[u8]) -> Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.and_then(|file| replace(&file, path, text))
        .with_context(|| format!("can't write {}", path.display()))
}

/// Gives the file at `path`, which is open, this text. The text goes to a file beside it, which
/// then takes its name. Written in place are special files, files behind a link or with several
/// names, and those in whose folder no file of their owner can be made.
fn replace(mut file: &File, path: &Path, text: &[u8]) -> io::Result<()> {
    let own = file.metadata()?;
    if let Some((mut part, part_path)) = beside(&own, path) {
        let written = part.write_all(text).and_then(|()| part.sync_all());
        let replaced = written.and_then(|()| fs::rename(&part_path, path));
        return replaced.inspect_err(|_| {
            let _ = fs::remove_file(&part_path);
        });
    }
    if own.is_file() {
        file.set_len(0)?;
        file.rewind()?;
    }
    file.write_all(text)
}

/// An empty file beside the one at `path`, with the same owner and permissions; `None` where that
/// one has to be written in place.
fn beside(own: &Metadata, path: &Path) -> Option<(File, PathBuf)> {
    let is_there = |m: Metadata| (m.dev(), m.ino()) == (own.dev(), own.ino());
    if !own.is_file() || own.nlink() != 1 || !path.symlink_metadata().is_ok_and(is_there) {
        return None;
    }
    let name = path.file_name()?.display();
    let part_path = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let part = OpenOptions::new().write(true).create_new(true).open(&part_path).ok()?;
    let owned = fchown(&part, Some(own.uid()), Some(own.gid()));
    if owned.and_then(|()| part.set_permissions(own.permissions())).is_err() {
        let _ = fs::remove_file(&part_path);
        return None;
    }
    Some((part, part_path))
}

/// What a command returns whose transfer ended so, and whose result could be written or not. What
/// the transfer says goes before.
///
/// # Errors
/// Of the transfer, else that the result could not be written.
pub fn ended(failure: Option<anyhow::Error>, signal: Option<u8>, written: Result<()>) -> Result<ExitCode> {
    if failure.is_some() || signal.is_some() {
        let _ = written.inspect_err(|e| logging::say(&format!("{e:#}")));
    } else {
        written?;
    }
    match (failure, signal) {
        (_, Some(signal)) => Ok(ExitCode::from(128 + signal)),
        (Some(e), None) => Err(e),
        (None, None) => Ok(ExitCode::SUCCESS),
    }
}

/// The same where something else had to be done, whatever the transfer's end.
///
/// # Errors
/// Both where both failed.
pub fn also(ended: Result<ExitCode>, done: Result<()>) -> Result<ExitCode> {
    match (ended, done) {
        (ended, Ok(())) => ended,
        (Ok(_), Err(e)) => Err(e),
        (Err(failure), Err(e)) => Err(anyhow!("{failure:#}; {e:#}")),
    }
}

/// Prints `result` as one line of JSON.
pub fn print<R: Serialize>(result: &R) -> Result<()> {
    let line = serde_json::to_string(result)?;
    writeln!(std::io::stdout(), "{line}").context("can't write to standard output")
}

/// Writes `result`, as JSON or as the text for people.
pub fn write<R: Serialize>(result: &R, to: Destination<'_>, text: impl FnOnce(&R) -> String) -> Result<()> {
    match to.json {
        JsonOutput::None if to.quiet => Ok(()),
        JsonOutput::None if to.stdout_taken => {
            logging::say(fit(&text(result), PLAIN_WIDTH).trim_end_matches('\n'));
            Ok(())
        }
        JsonOutput::None => {
            let text = fit(&text(result), width(&std::io::stdout()));
            std::io::stdout().write_all(text.as_bytes()).context("can't write to standard output")
        }
        json => json.write(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_that_failed_says_so_though_something_else_failed_too() {
        let text = |failure: Option<&'static str>, signal, done: Option<&'static str>| {
            let fail = |e: Option<&'static str>| e.map_or(Ok(()), |e| Err(anyhow!(e).context("why")));
            let ended = also(ended(fail(failure).err(), signal, Ok(())), fail(done));
            ended.map_err(|e| format!("{e:#}"))
        };
        assert_eq!(text(None, None, None), Ok(ExitCode::SUCCESS));
        assert_eq!(text(None, None, Some("NIC")), Err("why: NIC".to_owned()));
        assert_eq!(text(None, Some(2), Some("NIC")), Err("why: NIC".to_owned()));
        assert_eq!(text(Some("disk"), None, None), Err("why: disk".to_owned()));
        assert_eq!(text(Some("disk"), None, Some("NIC")), Err("why: disk; why: NIC".to_owned()));
    }
}
