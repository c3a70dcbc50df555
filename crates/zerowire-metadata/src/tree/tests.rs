use super::*;

const DOCUMENT: &str = r#"{
        "latest": {
            "user-data": "line one\nline two \"quoted\"",
            "meta-data": {"instance-id": "i-1", "count": 3, "ratio": 1.5, "on": true,
                          "none": null, "list": ["a", {"b": 1}], "empty": {}, "a/b%": "slash"}
        }
    }"#;

fn get(path: &[&str], as_json: bool) -> Option<String> {
    let tree = Arc::new(MetadataTree::from_json_str(DOCUMENT).expect("valid"));
    let slice = tree.lookup(path, as_json)?;
    Some(String::from_utf8(slice.bytes().to_vec()).expect("UTF-8"))
}

#[test]
fn texts() {
    let meta = |key| get(&["latest", "meta-data", key], false).expect("there");
    assert_eq!(get(&[], false).as_deref(), Some("latest/"));
    assert_eq!(get(&["latest"], false).as_deref(), Some("meta-data/\nuser-data"));
    assert_eq!(
        get(&["latest", "meta-data"], false).as_deref(),
        Some("a%2Fb%25\ncount\nempty/\ninstance-id\nlist\nnone\non\nratio")
    );
    assert_eq!(meta("instance-id"), "i-1");
    assert_eq!(meta("count"), "3");
    assert_eq!(meta("ratio"), "1.5");
    assert_eq!(meta("on"), "true");
    assert_eq!(meta("none"), "");
    assert_eq!(meta("list"), r#"["a",{"b":1}]"#);
    assert_eq!(meta("empty"), "");
    assert_eq!(meta("a/b%"), "slash");
    assert_eq!(get(&["latest", "user-data"], false).as_deref(), Some("line one\nline two \"quoted\""));
}

#[test]
fn json_of_each_node_is_the_node() {
    let whole: Value = serde_json::from_str(DOCUMENT).expect("valid");
    for (path, pointer) in [
        (&[][..], ""),
        (&["latest"][..], "/latest"),
        (&["latest", "user-data"][..], "/latest/user-data"),
        (&["latest", "meta-data", "list"][..], "/latest/meta-data/list"),
        (&["latest", "meta-data", "none"][..], "/latest/meta-data/none"),
    ] {
        let json = get(path, true).expect("there");
        let node: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(Some(&node), whole.pointer(pointer));
    }
}

#[test]
fn unknown_paths() {
    for path in [
        &["nope"][..],
        &["latest", ".."],
        &["latest", "user-data", "x"],
        &["latest", "meta-data", "list", "0"],
    ] {
        assert_eq!(get(path, false), None);
        assert_eq!(get(path, true), None);
    }
}

#[test]
fn errors_name_the_place_and_the_remedy() {
    let error = |text: &str| MetadataTree::from_json_str(text).expect_err("refused").to_string();
    let syntax = error("{\n  \"a\": x\n}");
    assert!(syntax.contains("line 2, column"), "{syntax}");
    assert!(!syntax.contains("at line"), "{syntax}");
    assert!(error("[1]").contains("is an array"));
    assert!(error(r#"{"a":{"":1}}"#).contains("empty key under /a"));
    assert!(error(r#"{"a":{"x\ny":1}}"#).contains(r#"key "x\ny" under /a"#));
    assert!(error(&" ".repeat(MAX_TREE_BYTES + 1)).contains("1048577 bytes"));
    let mut deep = Value::Object(serde_json::Map::new());
    for _ in 0..MAX_DEPTH {
        deep = serde_json::json!({ "k": deep });
    }
    assert!(matches!(MetadataTree::from_value(&deep), Err(MetadataError::TooDeep { .. })));
}
