//! What man says of a page.

use std::path::Path;
use std::process::{Command, Stdio};

/// Warnings of `man` about the pages in `folder` whose names `owns` takes, as text; `None`: there
/// is no `man` here that shows pages, and nothing was checked.
///
/// # Errors
/// A page can't be read, or `man` can't be started.
pub fn warnings(folder: &Path, owns: impl Fn(&str) -> bool) -> std::io::Result<Option<String>> {
    let mut said = String::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if !path.file_name().and_then(|name| name.to_str()).is_some_and(&owns) {
            continue;
        }
        let out = Command::new("man")
            .args(["-l", "--warnings", "-E", "UTF-8"])
            .arg(&path)
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8")
            .stdin(Stdio::null())
            .output();
        let out = match out {
            Ok(out) => out,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        // In an image without documentation `man` is a script that says so.
        if String::from_utf8_lossy(&out.stdout).contains("system has been minimized") {
            return Ok(None);
        }
        let is_empty = out.stdout.iter().all(u8::is_ascii_whitespace);
        if !out.status.success() || !out.stderr.is_empty() || is_empty {
            let warnings = String::from_utf8_lossy(&out.stderr);
            said.push_str(&format!("{}: {}: {warnings}\n", path.display(), out.status));
        }
    }
    Ok(Some(said))
}
