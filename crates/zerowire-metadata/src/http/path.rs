//! Request targets (RFC 9112 section 3.2) to path segments.

use zerowire_wire::http::percent_decoded;

/// The decoded segments of a target's path.
///
/// The query is ignored; an absolute form (`http://host/path`) counts as its
/// path; empty segments (doubled and trailing slashes) are left out. Dots are
/// names like others: the tree has no parent directories. Segments are decoded
/// after the split, so `%2F` is a slash inside a key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Segments to look up.
    Segments(Vec<String>),
    /// Well-formed, but can't be in any tree: not UTF-8, or `*`.
    Nowhere,
    /// A percent sign without two hexadecimal digits.
    Malformed,
}

impl Path {
    /// Parses a request target.
    pub(crate) fn parse(target: &str) -> Self {
        let path = match target.split_once("://") {
            Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                rest.find(['/', '?']).map_or("/", |start| &rest[start..])
            }
            _ => target,
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        if !path.is_empty() && !path.starts_with('/') {
            return Self::Nowhere;
        }
        let mut segments = Vec::new();
        let mut nowhere = false;
        for segment in path.split('/').filter(|segment| !segment.is_empty()) {
            let Some(bytes) = percent_decoded(segment) else {
                return Self::Malformed;
            };
            match String::from_utf8(bytes) {
                Ok(text) => segments.push(text),
                Err(_) => nowhere = true,
            }
        }
        if nowhere {
            return Self::Nowhere;
        }
        Self::Segments(segments)
    }
}

#[cfg(test)]
mod tests;
