//! The metadata: a JSON document, prepared once so that answering is slicing.
//!
//! Every answer that a path can have is written once, when the tree is made. The compact JSON of
//! the whole document contains the JSON of each node as one contiguous piece. An arena holds the
//! texts: strings as they are, and listings of objects. A response is a range of bytes in a shared
//! tree: no memory grows with the number of requests.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

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
/// - An object lists its keys, sorted, one a line, with a slash after those that are objects. A `/`
///   or `%` in a key is listed percent-encoded, as a path must write it.
/// - A string is given as it is.
/// - A number, a boolean or an array is given as compact JSON.
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
    /// Parses a document of at most [`MAX_TREE_BYTES`] bytes; the top must be
    /// an object.
    ///
    /// # Errors
    /// [`MetadataError`], with line and column for text that isn't JSON.
    pub fn from_json_str(text: &str) -> Result<Self, MetadataError> {
        if text.len() > MAX_TREE_BYTES {
            return Err(MetadataError::TooLarge { len: text.len() });
        }
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            let full = error.to_string();
            // The parser repeats the position at the end of its message.
            let suffix = format!(" at line {line} column {column}");
            MetadataError::Syntax {
                line,
                column,
                message: full.strip_suffix(&suffix).unwrap_or(&full).to_owned(),
            }
        })?;
        Self::from_value(&value)
    }

    /// Makes a tree from a parsed document, whose compact JSON may have at
    /// most [`MAX_TREE_BYTES`] bytes; the top must be an object.
    ///
    /// # Errors
    /// [`MetadataError`] for what can't be served.
    pub fn from_value(value: &Value) -> Result<Self, MetadataError> {
        let found = match value {
            Value::Object(_) => None,
            Value::Null => Some("null"),
            Value::Bool(_) => Some("a boolean"),
            Value::Number(_) => Some("a number"),
            Value::String(_) => Some("a string"),
            Value::Array(_) => Some("an array"),
        };
        if let Some(found) = found {
            return Err(MetadataError::NotAnObject { found });
        }
        let mut tree = Self { root: Node::default(), json: String::new(), text: String::new() };
        tree.root = tree.build(value, &mut Vec::new())?;
        if tree.json.len() > MAX_TREE_BYTES {
            return Err(MetadataError::TooLarge { len: tree.json.len() });
        }
        tree.json.shrink_to_fit();
        tree.text.shrink_to_fit();
        Ok(tree)
    }

    fn build<'v>(&mut self, value: &'v Value, path: &mut Vec<&'v str>) -> Result<Node, MetadataError> {
        if path.len() >= MAX_DEPTH {
            return Err(MetadataError::TooDeep { parent: path.join("/") });
        }
        let json_start = self.json.len();
        let mut node = Node::default();
        match value {
            Value::Object(map) => {
                let mut pairs: Vec<_> = map.iter().collect();
                pairs.sort_unstable_by_key(|(key, _)| key.as_str());
                self.json.push('{');
                for (index, &(key, child)) in pairs.iter().enumerate() {
                    check_key(key, path)?;
                    if index > 0 {
                        self.json.push(',');
                    }
                    self.push_scalar(&Value::String(key.clone()));
                    self.json.push(':');
                    path.push(key);
                    let child = self.build(child, path)?;
                    path.pop();
                    node.children.push((key.as_str().into(), child));
                }
                self.json.push('}');
                node.text = self.push_listing(&pairs);
            }
            Value::Array(items) => {
                self.json.push('[');
                let text_start = self.text.len();
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        self.json.push(',');
                    }
                    path.push("[]");
                    self.build(item, path)?;
                    path.pop();
                }
                self.json.push(']');
                // No path leads into an array, so its items' texts aren't kept.
                self.text.truncate(text_start);
                node.text_is_json = true;
            }
            Value::String(text) => {
                self.push_scalar(value);
                let start = self.text.len();
                self.text.push_str(text);
                node.text = start..self.text.len();
            }
            Value::Null => self.push_scalar(value),
            Value::Bool(_) | Value::Number(_) => {
                self.push_scalar(value);
                node.text_is_json = true;
            }
        }
        node.json = json_start..self.json.len();
        if node.text_is_json {
            node.text = node.json.clone();
        }
        Ok(node)
    }

    fn push_scalar(&mut self, value: &Value) {
        // Display of a value is its compact JSON; writing to a String can't fail.
        let _ = write!(self.json, "{value}");
    }

    fn push_listing(&mut self, pairs: &[(&String, &Value)]) -> Range<usize> {
        let start = self.text.len();
        for (index, (key, child)) in pairs.iter().enumerate() {
            if index > 0 {
                self.text.push('\n');
            }
            for character in key.chars() {
                match character {
                    '/' => self.text.push_str("%2F"),
                    '%' => self.text.push_str("%25"),
                    other => self.text.push(other),
                }
            }
            if child.is_object() {
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

fn check_key(key: &str, path: &[&str]) -> Result<(), MetadataError> {
    if key.is_empty() {
        return Err(MetadataError::EmptyKey { parent: path.join("/") });
    }
    if key.chars().any(char::is_control) {
        return Err(MetadataError::ControlCharacter { key: key.to_owned(), parent: path.join("/") });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
