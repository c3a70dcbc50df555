//! Programs that are measured in turns, and the one that the others are set beside.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;

use crate::words::wrong;

/// A program, and how tables name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedProgram {
    /// Its variants' names begin with this word.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// Arguments of its own, in front of those of each variant.
    pub args: Vec<String>,
}

impl NamedProgram {
    /// The program that is measured where none is named.
    pub(crate) fn usual(path: &Path) -> Self {
        Self { name: "zerowire".to_owned(), path: path.to_owned(), args: Vec::new() }
    }
}

/// The programs that are named, or `usual` where none is.
pub(crate) fn measured(named: &[NamedProgram], usual: Option<&PathBuf>) -> Vec<NamedProgram> {
    match named {
        [] => usual.map(|path| NamedProgram::usual(path)).into_iter().collect(),
        named => named.to_vec(),
    }
}

impl FromStr for NamedProgram {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty());
        let (name, line) =
            parts.ok_or_else(|| format!("--program {text}: give NAME=PATH or NAME='PATH --OPTION …'"))?;
        let (path, args) = line.split_at(line.find(" --").unwrap_or(line.len()));
        let is_word = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !name.chars().all(is_word) || ["floor", "bare", "copy"].contains(&name) {
            return Err(format!(
                "--program {text}: the name '{name}' is not free: take letters, digits, '.', '_' and '-', and not floor, bare or copy"
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            path: path.into(),
            args: args.split_whitespace().map(str::to_owned).collect(),
        })
    }
}

/// A number of `--gate`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=1000.0).contains(percent));
    percent.ok_or_else(|| "choose 0 to 1000 percent".to_owned())
}

/// Refuses two of one name, files that are not there, and a gate without two to compare.
pub(crate) fn verify(programs: &[NamedProgram], gate: Option<f64>) -> Result<()> {
    if let (Some(percent), [program]) = (gate, programs) {
        wrong!("--gate {percent} with {} alone: name a second --program to compare with it", program.name);
    }
    for (index, NamedProgram { name, path, .. }) in programs.iter().enumerate() {
        if programs[..index].iter().any(|other| other.name == *name) {
            wrong!("--program {name}={}: another program has this name", path.display());
        }
        if !path.is_file() {
            wrong!("--program {name}={}: there is no such file", path.display());
        }
    }
    Ok(())
}

/// The variant of the first program that `variant`, of another one, is set beside.
pub(crate) fn before(programs: &[NamedProgram], variant: &str) -> Option<String> {
    let (first, others) = programs.split_first()?;
    let (name, rest) = variant.split_at(variant.find([' ', ',']).unwrap_or(variant.len()));
    others.iter().any(|other| other.name == name).then(|| format!("{}{rest}", first.name))
}

#[cfg(test)]
mod tests;
