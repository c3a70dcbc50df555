//! The metadata: a JSON document, prepared once so that answering is slicing.
//!
//! Every answer that a path can have is written once, when the tree is made. The compact JSON of
//! the whole document contains the JSON of each node as one contiguous piece. An arena holds the
//! texts: strings as they are, and listings of objects. A response is a range of bytes in a shared
//! tree: no memory grows with the number of requests.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use serde::de::{Deserialize, IgnoredAny};
use serde_json::{Deserializer, Value};

use crate::config::MetadataError;

/// The largest document in bytes: enough for user data of several hundred
/// kilobytes, small enough to read and to hold twice during a reload.
pub const MAX_TREE_BYTES: usize = 1 << 20;

/// The deepest nesting of objects and arrays, which bounds recursion.
pub const MAX_DEPTH: usize = 128;

/// A metadata document, ready to be served.
///
/// Rules for what a path gives as text:
///
/// - An object lists its keys, sorted, one a line, with a slash after those that are objects. `/`,
///   `%`, `?` and `#` in a key are listed percent-encoded: a path has another meaning with them.
/// - A string is given as it is.
/// - A number is given as the document has it.
/// - A boolean or an array is given as compact JSON.
/// - null is empty.
///
/// As JSON every node is given compactly. Paths don't lead into arrays.
#[derive(Debug)]
pub struct MetadataTree {
    root: Node,
    json: String,
    text: String,
}

#[derive(Debug, Default)]
struct Node {
    json: Range<usize>,
    text: Range<usize>,
    /// Whether `text` is a range of the JSON instead of the arena.
    text_is_json: bool,
    /// Sorted by key.
    children: Vec<(Box<str>, Node)>,
}

/// A node's text or JSON; keeps the tree alive while it is sent, so that a
/// reload doesn't change an answer half-way.
#[derive(Debug)]
pub(crate) struct TreeSlice {
    tree: Arc<MetadataTree>,
    range: Range<usize>,
    in_json: bool,
}

impl TreeSlice {
    /// The bytes of the answer.
    pub(crate) fn bytes(&self) -> &[u8] {
        let arena = if self.in_json { &self.tree.json } else { &self.tree.text };
        arena.as_bytes().get(self.range.clone()).unwrap_or_default()
    }
}

impl MetadataTree {
    /// Parses a document of at most [`MAX_TREE_BYTES`] bytes, with or without a byte order mark.
    /// The top must be an object.
    ///
    /// # Errors
    /// [`MetadataError`], with line and column for text that isn't JSON.
    pub fn from_json_str(text: &str) -> Result<Self, MetadataError> {
        if text.len() > MAX_TREE_BYTES {
            return Err(MetadataError::TooLarge { len: text.len() });
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let IgnoredAny = parse(text, text)?;
        let value = next_value(&mut { text });
        let found = match value.as_bytes() {
            [b'{', ..] => None,
            [b'n', ..] => Some("null"),
            [b't' | b'f', ..] => Some("a boolean"),
            [b'"', ..] => Some("a string"),
            [b'[', ..] => Some("an array"),
            _ => Some("a number"),
        };
        if let Some(found) = found {
            return Err(MetadataError::NotAnObject { found });
        }
        let mut tree = Self { root: Node::default(), json: String::new(), text: String::new() };
        tree.root = tree.build(value, text, &mut Vec::new())?;
        tree.json.shrink_to_fit();
        tree.text.shrink_to_fit();
        Ok(tree)
    }

    /// Adds a value of the document `whole`. Each level of nesting is parsed anew, so that numbers
    /// keep their text.
    fn build(&mut self, value: &str, whole: &str, path: &mut Vec<String>) -> Result<Node, MetadataError> {
        if path.len() >= MAX_DEPTH {
            return Err(MetadataError::TooDeep { parent: path.join("/") });
        }
        let json_start = self.json.len();
        let mut node = Node::default();
        match value.as_bytes() {
            [b'{', ..] => {
                let mut members = Vec::new();
                let mut names_and_values = parts(value).into_iter();
                while let (Some(name), Some(value)) = (names_and_values.next(), names_and_values.next()) {
                    members.push((parse::<String>(name, whole)?, value));
                }
                members.sort_unstable_by(|a, b| a.0.cmp(&b.0));
                check_keys(&members, path)?;
                self.json.push('{');
                node.text = self.push_listing(&members);
                for (key, child) in members {
                    if !node.children.is_empty() {
                        self.json.push(',');
                    }
                    self.push_string(&key);
                    self.json.push(':');
                    path.push(key.clone());
                    let child = self.build(child, whole, path)?;
                    path.pop();
                    node.children.push((key.into(), child));
                }
                self.json.push('}');
            }
            [b'[', ..] => {
                self.json.push('[');
                let text_start = self.text.len();
                for (index, item) in parts(value).into_iter().enumerate() {
                    if index > 0 {
                        self.json.push(',');
                    }
                    path.push("[]".to_owned());
                    self.build(item, whole, path)?;
                    path.pop();
                }
                self.json.push(']');
                // No path leads into an array, so its items' texts aren't kept.
                self.text.truncate(text_start);
                node.text_is_json = true;
            }
            [b'"', ..] => {
                let text: String = parse(value, whole)?;
                self.push_string(&text);
                let start = self.text.len();
                self.text.push_str(&text);
                node.text = start..self.text.len();
            }
            other => {
                self.json.push_str(value);
                node.text_is_json = other != b"null";
            }
        }
        node.json = json_start..self.json.len();
        if node.text_is_json {
            node.text = node.json.clone();
        }
        Ok(node)
    }

    fn push_string(&mut self, text: &str) {
        // Display of a value is its compact JSON; writing to a String can't fail.
        let _ = write!(self.json, "{}", Value::from(text));
    }

    fn push_listing(&mut self, members: &[(String, &str)]) -> Range<usize> {
        let start = self.text.len();
        for (index, (key, child)) in members.iter().enumerate() {
            if index > 0 {
                self.text.push('\n');
            }
            for character in key.chars() {
                match character {
                    '/' => self.text.push_str("%2F"),
                    '%' => self.text.push_str("%25"),
                    '?' => self.text.push_str("%3F"),
                    '#' => self.text.push_str("%23"),
                    other => self.text.push(other),
                }
            }
            if child.starts_with('{') {
                self.text.push('/');
            }
        }
        start..self.text.len()
    }

    /// The answer for a path of decoded segments, as JSON or as text; `None`
    /// where the tree has no such path.
    pub(crate) fn lookup<S: AsRef<str>>(
        self: &Arc<Self>,
        segments: &[S],
        as_json: bool,
    ) -> Option<TreeSlice> {
        let mut node = &self.root;
        for segment in segments {
            let index = node.children.binary_search_by(|(key, _)| key.as_ref().cmp(segment.as_ref())).ok()?;
            node = &node.children.get(index)?.1;
        }
        let range = if as_json { &node.json } else { &node.text };
        Some(TreeSlice {
            tree: Arc::clone(self),
            range: range.clone(),
            in_json: as_json || node.text_is_json,
        })
    }
}

/// What an array has, or an object: its names and values in turn. The text is JSON.
fn parts(text: &str) -> Vec<&str> {
    let mut rest = &text[1..];
    let mut parts = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r', ',', ':']);
        if rest.is_empty() || rest.starts_with([']', '}']) {
            return parts;
        }
        parts.push(next_value(&mut rest));
    }
}

/// Takes the first value of JSON.
fn next_value<'a>(rest: &mut &'a str) -> &'a str {
    let text = rest.trim_ascii_start();
    let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let is_there = values.next().is_some_and(|value| value.is_ok());
    let (value, after) = text.split_at(if is_there { values.byte_offset() } else { text.len() });
    *rest = after;
    value
}

/// Parses a part of the document `whole`.
fn parse<'a, T: Deserialize<'a>>(part: &'a str, whole: &str) -> Result<T, MetadataError> {
    serde_json::from_str(part).map_err(|error| {
        let full = error.to_string();
        // The parser repeats the position at the end of its message.
        let suffix = format!(" at line {} column {}", error.line(), error.column());
        let before = &whole[..part.as_ptr().addr() - whole.as_ptr().addr()];
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        MetadataError::Syntax {
            line: before.matches('\n').count() + error.line(),
            column: error.column() + if error.line() == 1 { before.len() - line_start } else { 0 },
            message: full.strip_suffix(&suffix).unwrap_or(&full).to_owned(),
        }
    })
}

/// Refuses keys that no path or listing can have. They are sorted.
fn check_keys(members: &[(String, &str)], path: &[String]) -> Result<(), MetadataError> {
    for (index, (key, _)) in members.iter().enumerate() {
        let next = members.get(index + 1);
        let (key, parent) = (key.clone(), path.join("/"));
        if key.is_empty() {
            return Err(MetadataError::EmptyKey { parent });
        }
        if key.chars().any(char::is_control) {
            return Err(MetadataError::ControlCharacter { key, parent });
        }
        if next.is_some_and(|(next, _)| *next == key) {
            return Err(MetadataError::DuplicateKey { key, parent });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
