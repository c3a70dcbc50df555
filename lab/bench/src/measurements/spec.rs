//! The comment that says what stands below it.

use anyhow::{Result, anyhow, bail};

/// A comment, without its marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// `source`, `table` or `chart`.
    pub kind: String,
    /// The file with the JSON.
    pub file: String,
    /// The list in it: `cases/variants`; empty for a source.
    pub list: String,
    options: Vec<(String, String)>,
}

/// A member of a record, and how it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The key in JSON.
    pub key: String,
    /// Behind the colon: digits behind the point of a figure, with `q` behind them if its quartiles
    /// are written too; or `B` for a number of bytes.
    pub form: String,
}

impl Spec {
    /// Reads `table net.json cases/variants rows=frame_len:B …`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut words = words(text)?.into_iter();
        let kind = words.next().unwrap_or_default();
        if !["source", "table", "chart"].contains(&kind.as_str()) {
            bail!("'{kind}': a comment begins with source, table or chart");
        }
        let file = words.next().ok_or_else(|| anyhow!("{kind}: the file is missing"))?;
        if file.contains('/') {
            bail!("{kind} {file}: give the name of a file in data");
        }
        let mut list = String::new();
        let mut options = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some((key, value)) => options.push((key.to_owned(), value.to_owned())),
                None if list.is_empty() && kind != "source" => list = word,
                None => bail!("{kind} {file}: '{word}' is not KEY=VALUE"),
            }
        }
        let known: &[&str] = match kind.as_str() {
            "source" => &["command"],
            "table" => &["where", "rows", "columns", "values", "head"],
            _ => &["where", "groups", "series", "values", "file", "title", "y", "x", "better", "reference"],
        };
        if let Some((key, _)) = options.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            bail!("{kind} {file}: '{key}' is not known: {}", known.join(", "));
        }
        if kind != "source" && list.is_empty() {
            bail!("{kind} {file}: the list is missing, such as cases/variants");
        }
        Ok(Self { kind, file, list, options })
    }

    /// The value of an option.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.options.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// The value of an option that must be there.
    pub fn need(&self, key: &str) -> Result<&str> {
        self.get(key).ok_or_else(|| anyhow!("{} {}: {key}=… is missing", self.kind, self.file))
    }

    /// The members that an option names; none without it.
    pub fn fields(&self, key: &str) -> Vec<Field> {
        let field = |word: &str| {
            let (key, form) = word.split_once(':').unwrap_or((word, ""));
            Field { key: key.to_owned(), form: form.to_owned() }
        };
        self.get(key).map(|value| value.split(',').map(field).collect()).unwrap_or_default()
    }

    /// What records must have: a key, and the values of which it has one.
    pub fn conditions(&self) -> Result<Vec<(&str, Vec<&str>)>> {
        let given = self.options.iter().filter(|(key, _)| key == "where");
        given
            .map(|(_, value)| match value.split_once('=') {
                Some((key, values)) => Ok((key, values.split('|').collect())),
                None => bail!("where={value}: give where=KEY=VALUE or where=KEY=VALUE|VALUE"),
            })
            .collect()
    }
}

/// Words with spaces between them; quotes keep spaces.
fn words(text: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut is_quoted = false;
    for c in text.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            c if c.is_whitespace() && !is_quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            '\n' => word.push(' '),
            c => word.push(c),
        }
    }
    if is_quoted {
        bail!("a quote has no end: {text}");
    }
    words.extend((!word.is_empty()).then_some(word));
    Ok(words)
}
