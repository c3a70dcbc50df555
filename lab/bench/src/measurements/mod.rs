//! The pages in measurements/: their tables and charts are made of the JSON of benchmarks.
//!
//! A page is Markdown. Comments in it say what stands below each of them, up to `<!-- end -->`:
//!
//! ```text
//! <!-- source net.json command="zerowire-bench net" -->
//! <!-- table net.json cases/variants where=name=zerowire rows=frame_len:B columns=direction
//!      values=ratio_to_floor:2 -->
//! <!-- chart net.json cases/variants groups=frame_len:B series=name values=ratio_to_floor
//!      file=net.svg title="CPU time" y="CPU time / floor" x="frame" better=lower -->
//! ```
//!
//! 1. `spec` reads such a comment.
//! 2. `records` takes the JSON as a list of records: a case, and what one of its variants has.
//! 3. `table` and `chart` choose records and put their figures into a table or bars.
//!
//! Without the JSON a source says which command makes it, and tables and charts are empty. So a
//! page never has a figure that no JSON has, but in its own prose.

mod chart;
mod page;
mod records;
mod spec;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use zerowire_cli::outcome::write_file;

use page::MeasurementPage;

/// What [`render`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Pages and charts that were not as their JSON has it. They are now, unless they were only
    /// checked.
    pub changed: Vec<PathBuf>,
    /// JSON that is not there, with the command that makes it.
    pub missing: Vec<(String, String)>,
    /// JSON that no page takes.
    pub unused: Vec<String>,
}

/// Writes the tables and charts of all pages in `folder` from the JSON in `folder`/data. With
/// `check` it writes nothing.
///
/// # Errors
/// A file can't be read or written, or a comment of a page can't be understood: the text names the
/// page and the comment.
pub fn render(folder: &Path, check: bool) -> Result<Rendered> {
    let mut rendered = Rendered::default();
    let mut used = Vec::new();
    for path in names(folder, "md")?.into_iter().map(|name| folder.join(name)) {
        let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        let page = MeasurementPage::render(&text, &folder.join("data"))
            .with_context(|| path.display().to_string())?;
        let charts = page.charts.into_iter().map(|(name, svg)| (folder.join("figures").join(name), svg));
        for (path, wanted) in charts.chain([(path, page.text)]) {
            if fs::read_to_string(&path).ok().as_ref() == Some(&wanted) {
                continue;
            }
            if !check {
                let parent = path.parent().unwrap_or(folder);
                fs::create_dir_all(parent).with_context(|| format!("can't make {}", parent.display()))?;
                write_file(&path, wanted.as_bytes())?;
            }
            rendered.changed.push(path);
        }
        rendered.missing.extend(page.missing);
        used.extend(page.used);
    }
    rendered.unused = names(&folder.join("data"), "json").unwrap_or_default();
    rendered.unused.retain(|name| !used.contains(name));
    Ok(rendered)
}

/// The names of the files in a folder with an extension, in order.
fn names(folder: &Path, extension: &str) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.rsplit_once('.').is_some_and(|(_, end)| end == extension) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests;
