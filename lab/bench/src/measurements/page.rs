//! A page, and what its comments ask for.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use super::chart::chart;
use super::spec::Spec;
use super::table::table;
use crate::machine::Machine;

const BEGINS: [&str; 3] = ["<!-- source ", "<!-- table ", "<!-- chart "];
const END: &str = "<!-- end -->";

/// A page as it should be.
#[derive(Debug, Default)]
pub struct MeasurementPage {
    /// Its text.
    pub text: String,
    /// Charts, with the names of their files.
    pub charts: Vec<(String, String)>,
    /// JSON that is not there, with the command that makes it.
    pub missing: Vec<(String, String)>,
    /// JSON that it takes.
    pub used: Vec<String>,
    /// The same by the file's name, as far as it is there.
    parsed: BTreeMap<String, Rc<Value>>,
}

impl MeasurementPage {
    /// The page `old`, with what the JSON in the folder `data` has.
    pub fn render(old: &str, data: &Path) -> Result<Self> {
        let mut page = Self::default();
        let mut lines = old.lines();
        while let Some(line) = lines.next() {
            page.push(line);
            if !BEGINS.iter().any(|begin| line.starts_with(begin)) {
                continue;
            }
            let mut comment = line.to_owned();
            while !comment.ends_with("-->") {
                let Some(next) = lines.next() else { bail!("{line}: the comment has no end") };
                page.push(next);
                comment.push('\n');
                comment.push_str(next);
            }
            // A page that lost an end keeps the text behind it.
            loop {
                match lines.next() {
                    Some(END) => break,
                    Some(next) if !BEGINS.iter().any(|begin| next.starts_with(begin)) => {}
                    _ => bail!("{line}: no '{END}' follows"),
                }
            }
            let spec = Spec::parse(comment.trim_start_matches("<!-- ").trim_end_matches("-->"))?;
            let text = page.below(&spec, data)?;
            page.text.push_str(&text);
            page.push(END);
        }
        Ok(page)
    }

    fn push(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// What stands below a comment.
    fn below(&mut self, spec: &Spec, data: &Path) -> Result<String> {
        self.used.push(spec.file.clone());
        let json = match self.parsed.get(&spec.file) {
            Some(json) => Rc::clone(json),
            None => match read(&data.join(&spec.file))? {
                Some(json) => Rc::clone(self.parsed.entry(spec.file.clone()).or_insert(Rc::new(json))),
                None => return self.without(spec),
            },
        };
        match spec.kind.as_str() {
            "table" => table(&json, spec),
            "chart" => {
                let bars = chart(&json, spec)?;
                let name = spec.need("file")?;
                self.charts.push((name.to_owned(), bars.render()?));
                Ok(format!("![{}](figures/{name})\n", bars.title))
            }
            _ => Ok(format!("{}.\n{}", head(&json), notes(&json))),
        }
    }

    /// The same without the JSON.
    fn without(&mut self, spec: &Spec) -> Result<String> {
        if spec.kind != "source" {
            return Ok(String::new());
        }
        let command = spec.need("command")?;
        self.missing.push((spec.file.clone(), command.to_owned()));
        Ok(format!("Not measured yet: `{command} --json measurements/data/{}`.\n", spec.file))
    }
}

/// The JSON in a file; None if the file does not exist.
fn read(path: &Path) -> Result<Option<Value>> {
    match fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("can't read {}", path.display())),
    }
}

/// What a report was measured with: command, day, commit, machine.
pub fn head(json: &Value) -> String {
    let run = &json["run"];
    let machine = Machine::deserialize(&json["machine"]).unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let commit = match run["commit"].as_str() {
        Some(commit) => format!("commit {commit}"),
        None => "of an unknown commit".to_owned(),
    };
    format!("`{}`, {}, {commit}; {machine}", word(&run["command"]), word(&run["date"]))
}

/// The remarks of a report, a line each.
fn notes(json: &Value) -> String {
    let notes = json["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    notes.map(|note| format!("Note: {note}.\n")).collect()
}
