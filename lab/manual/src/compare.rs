//! Files of the tree that are generated: they are compared, or written.

use std::fs;
use std::path::Path;

use crate::Files;

/// With this variable set to 1 [`compare`] writes what differs.
pub const UPDATE: &str = "ZEROWIRE_UPDATE_MAN";

/// Compares the files of `folder` whose names `owns` takes with `wanted`. With [`UPDATE`] it writes
/// them first, and removes those that are not wanted.
///
/// # Errors
/// The text for people: which file differs, where, and how to write it.
pub fn compare(folder: &Path, owns: impl Fn(&str) -> bool, wanted: &Files) -> Result<(), String> {
    let update = std::env::var_os(UPDATE).is_some_and(|value| value == "1");
    compare_or_write(folder, owns, wanted, update)
}

fn compare_or_write(
    folder: &Path,
    owns: impl Fn(&str) -> bool,
    wanted: &Files,
    update: bool,
) -> Result<(), String> {
    if let Some(name) = wanted.keys().find(|name| !owns(name)) {
        return Err(format!("{name} is written, but not compared: it is not among the own names"));
    }
    if update {
        write(folder, &owns, wanted).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let remedy = format!("run '{UPDATE}=1 cargo test', or 'make man'");
    for (name, text) in wanted {
        let path = folder.join(name);
        let found = fs::read_to_string(&path).unwrap_or_default();
        if found != *text {
            let same = found.lines().zip(text.lines()).take_while(|(a, b)| a == b).count();
            return Err(format!(
                "{} is stale from line {} on (it has {:?}, wanted is {:?}): {remedy}",
                path.display(),
                same + 1,
                found.lines().nth(same),
                text.lines().nth(same)
            ));
        }
    }
    match names(folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .into_iter()
        .find(|name| owns(name) && !wanted.contains_key(name))
    {
        Some(name) => Err(format!("{}: nothing makes it any more: {remedy}", folder.join(name).display())),
        None => Ok(()),
    }
}

fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

fn write(folder: &Path, owns: &impl Fn(&str) -> bool, wanted: &Files) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for name in names(folder)?.iter().filter(|name| owns(name) && !wanted.contains_key(*name)) {
        fs::remove_file(folder.join(name))?;
    }
    wanted.iter().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}

#[cfg(test)]
mod tests;
