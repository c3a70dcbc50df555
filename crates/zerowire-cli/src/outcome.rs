//! How a command ended, and where its result is written.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::columns::{PLAIN_WIDTH, fit, width};
use crate::{WrongArguments, logging};

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
    /// As JSON to this file, `-`: to standard output; else as text.
    pub json: Option<&'a Path>,
    /// No text.
    pub quiet: bool,
    /// Text goes to standard error, since something else went to standard output.
    pub stdout_taken: bool,
}

/// Prints `result` as one line of JSON.
pub fn print<R: Serialize>(result: &R) -> Result<()> {
    let line = serde_json::to_string(result)?;
    writeln!(std::io::stdout(), "{line}").context("can't write to standard output")
}

/// Writes `result`, as JSON or as the text for people.
pub fn write<R: Serialize>(result: &R, to: Destination<'_>, text: impl FnOnce(&R) -> String) -> Result<()> {
    let columns = width(&std::io::stdout());
    let mut stdout = std::io::stdout().lock();
    match to.json {
        Some(path) if path.as_os_str() == "-" => writeln!(stdout, "{}", serde_json::to_string(result)?)?,
        Some(path) => {
            let text = serde_json::to_string_pretty(result)? + "\n";
            std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
        }
        None if to.quiet => {}
        None if to.stdout_taken => {
            std::io::stderr().write_all(fit(&text(result), PLAIN_WIDTH).as_bytes())?;
        }
        None => stdout.write_all(fit(&text(result), columns).as_bytes())?,
    }
    Ok(())
}
