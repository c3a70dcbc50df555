//! When, of which build and by which command a report was made: the head of its JSON.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use zerowire_cli::logging::rfc3339;

/// The head of a report's JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunTaken {
    /// The day in UTC, as `2026-11-26`.
    pub date: String,
    /// Version of this program.
    pub version: &'static str,
    /// The commit that this program was built from, with `-dirty` behind it if files had changed;
    /// none where that is not known.
    pub commit: Option<String>,
    /// The command line, without the places of JSON and charts and without folders.
    pub command: String,
}

impl RunTaken {
    /// That of this process, at this moment.
    pub fn now() -> Self {
        let exe = std::env::current_exe().ok();
        Self {
            date: rfc3339(SystemTime::now()).chars().take_while(|c| *c != 'T').collect(),
            version: env!("CARGO_PKG_VERSION"),
            commit: exe.as_deref().and_then(commit),
            command: command(std::env::args().skip(1)),
        }
    }
}

/// The commit of the tree that `program` lies in, unless the program is older than it.
fn commit(program: &Path) -> Option<String> {
    let folder = program.parent()?;
    let git = |arguments: &[&str]| {
        let out = Command::new("git")
            .arg("-C")
            .arg(folder)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8(out.stdout).ok()?.trim().to_owned();
        (out.status.success() && !text.is_empty()).then_some(text)
    };
    let committed = git(&["log", "-1", "--format=%ct"])?.parse().ok()?;
    let built = program.metadata().ok()?.modified().ok()?;
    if built < UNIX_EPOCH + Duration::from_secs(committed) {
        return None;
    }
    git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
}

/// A command line as it can be typed elsewhere.
fn command(arguments: impl IntoIterator<Item = String>) -> String {
    let mut words = vec!["zerowire-bench".to_owned()];
    let mut is_place = false;
    for argument in arguments {
        let is_value = std::mem::take(&mut is_place);
        is_place = !is_value && ["--json", "--svg"].contains(&argument.as_str());
        if is_value || is_place || argument.starts_with("--json=") || argument.starts_with("--svg=") {
            continue;
        }
        let word = without_folder(&argument);
        words.push(if word.contains(' ') { format!("'{word}'") } else { word });
    }
    words.join(" ")
}

/// `before=/tmp/zerowire` is `before=zerowire`.
fn without_folder(word: &str) -> String {
    let Some((folder, name)) = word.rsplit_once('/') else { return word.to_owned() };
    let kept = folder.rfind(['=', ' ']).map_or("", |end| &folder[..=end]);
    format!("{kept}{name}")
}

#[cfg(test)]
mod tests;
