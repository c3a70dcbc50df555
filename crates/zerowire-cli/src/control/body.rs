//! Bodies of requests: JSON, with the place of what is wrong.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

/// What is wrong with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyError {
    /// Where: a JSON pointer (RFC 6901), empty for the whole.
    pub pointer: String,
    /// What.
    pub text: String,
}

/// Reads one object and nothing behind it.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    // A list of the values in the order of the fields would be taken as well.
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(BodyError { pointer: String::new(), text: "expected a JSON object: {…}".to_owned() });
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader)
        .map_err(|e| BodyError { pointer: pointer(e.path()), text: e.inner().to_string() })?;
    reader.end().map_err(whole)?;
    Ok(value)
}

/// A mistake that has no place.
fn whole(e: serde_json::Error) -> BodyError {
    BodyError { pointer: String::new(), text: e.to_string() }
}

/// `current` with the keys of a merge patch (RFC 7396): null takes a key away. Returns the keys of
/// the patch, too.
pub fn merge<T: DeserializeOwned + Serialize>(
    current: &T,
    patch: &[u8],
) -> Result<(T, Vec<String>), BodyError> {
    let patch: Map<String, Value> = parse(patch)?;
    let mut merged = serde_json::to_value(current).map_err(whole)?;
    let mut keys = Vec::new();
    if let Value::Object(all) = &mut merged {
        for (key, value) in patch {
            // Null stays, so that an unknown key is found whatever its value. It does nothing to a
            // key that has no value.
            let none = value.is_null();
            let had = all.insert(key.clone(), value).is_some_and(|had| !had.is_null());
            if had || !none {
                keys.push(key);
            }
        }
    }
    let merged = serde_json::to_vec(&merged).map_err(whole)?;
    let merged = parse(&merged).map_err(|mut e: BodyError| {
        // Whoever sent the patch knows no columns of the whole.
        e.text.truncate(e.text.rfind(" at line ").unwrap_or(e.text.len()));
        e
    })?;
    Ok((merged, keys))
}

fn pointer(path: &Path) -> String {
    let part = |segment: &Segment| match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    path.iter().filter_map(part).map(|part| format!("/{part}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Net;

    fn wrong(body: &str) -> BodyError {
        parse::<Net>(body.as_bytes()).expect_err(body)
    }

    #[test]
    fn what_is_wrong_has_a_place() {
        for (body, pointer, words) in [
            ("", "", "EOF"),
            ("[]", "", "expected a JSON object"),
            ("[\"/s\", \"tap:a\", null, null, null, null, null, null]", "", "expected a JSON object"),
            (" 7", "", "expected a JSON object"),
            ("{\"socket\": \"/s\"", "", "EOF"),
            ("{\"socket\": \"/s\"}", "", "missing field `port`"),
            ("{\"socket\": \"/s\", \"port\": 7}", "/port", "expected a string"),
            ("{\"socket\": \"/s\", \"port\": null}", "/port", "expected a string"),
            ("{\"socket\": \"/s\", \"prt\": \"tap:a\"}", "/prt", "unknown field `prt`"),
            ("{\"a/b~\": 1}", "/a~1b~0", "unknown field"),
            ("{\"socket\": \"/s\", \"socket\": \"/t\"}", "", "duplicate field `socket`"),
            ("{\"socket\": \"/s\", \"port\": \"tap:a\"} x", "", "trailing characters"),
        ] {
            let error = wrong(body);
            assert_eq!(error.pointer, pointer, "{body}: {error:?}");
            assert!(error.text.contains(words), "{body}: {error:?}");
        }
    }

    #[test]
    fn a_patch_changes_what_it_names() {
        let vm =
            "{\"socket\": \"/s\", \"port\": \"tap:a\", \"metadata\": \"/m\", \"mac\": \"52:54:00:00:00:01\"}";
        let vm: Net = parse(vm.as_bytes()).expect("a VM");
        let patch = b"{\"metadata\": \"/n\", \"mac\": null, \"guard\": null}";
        let (changed, keys) = merge(&vm, patch).expect("a patch");
        assert_eq!(keys, ["mac", "metadata"]);
        assert_eq!(changed.metadata.as_deref(), Some("/n".as_ref()));
        assert_eq!((changed.mac, changed.port.as_str()), (None, "tap:a"));
        assert_eq!(merge(&vm, b"{}"), Ok((vm.clone(), Vec::new())));
        assert_eq!(merge(&vm, b"{\"port\": null}").expect_err("no port").pointer, "/port");
        assert_eq!(merge(&vm, b"{\"metadta\": null}").expect_err("unknown").pointer, "/metadta");
        assert_eq!(merge(&vm, b"{\"port\": []}").expect_err("a list").pointer, "/port");
        let unknown = merge(&vm, b"{\"prt\": 1}").expect_err("unknown");
        assert_eq!(unknown.pointer, "/prt");
        assert!(
            unknown.text.starts_with("unknown field `prt`") && !unknown.text.contains(" line "),
            "{unknown:?}"
        );
        assert!(merge(&vm, b"[]").is_err());
        let deep = format!("{{\"port\": {}", "[".repeat(60_000));
        assert!(merge(&vm, deep.as_bytes()).expect_err("deep").text.contains("recursion limit"));
    }
}
