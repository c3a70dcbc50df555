use super::*;

const DOCUMENT: &str = r#"{
        "latest": {
            "user-data": "line one\nline two \"quoted\"",
            "meta-data": {"instance-id": "i-1", "count": 3, "ratio": 1.5, "on": true,
                          "none": null, "list": ["a", {"b": 1}], "empty": {}, "a/b%": "slash", "c?d#e f": "mark"}
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
        Some("a%2Fb%25\nc%3Fd%23e f\ncount\nempty/\ninstance-id\nlist\nnone\non\nratio")
    );
    assert_eq!(meta("instance-id"), "i-1");
    assert_eq!(meta("count"), "3");
    assert_eq!(meta("ratio"), "1.5");
    assert_eq!(meta("on"), "true");
    assert_eq!(meta("none"), "");
    assert_eq!(meta("list"), r#"["a",{"b":1}]"#);
    assert_eq!(meta("empty"), "");
    assert_eq!(meta("a/b%"), "slash");
    assert_eq!(meta("c?d#e f"), "mark");
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
    assert!(error(r#"{"a":{"k":1,"b":0,"\u006b":2}}"#).contains(r#"key "k" is twice under /a"#));
    // Escapes are looked at once the text as a whole is JSON.
    let half = "{\"a\": 1,\n \"b\": [{}, {\"c\": \"\\ud800\"}]}";
    let whole = serde_json::from_str::<Value>(half).expect_err("half a character");
    let place = format!("line {}, column {}: ", whole.line(), whole.column());
    assert!(error(half).contains(&place), "{place}: {}", error(half));
    let deep = |levels| "{\"k\":".repeat(levels) + "1" + &"}".repeat(levels);
    assert!(MetadataTree::from_json_str(&deep(MAX_DEPTH - 1)).is_ok());
    assert!(error(&deep(MAX_DEPTH)).contains("nested more than 128 levels deep at /k/k"));
    assert!(error(&"[".repeat(MAX_TREE_BYTES)).contains("EOF"));
}

#[test]
fn numbers_keep_their_text() {
    let document = r#"{"whole": 12345678901234567890123, "list": [1.10, 1e3, -0], "huge": 1e999}"#;
    let tree = Arc::new(MetadataTree::from_json_str(document).expect("valid"));
    for as_json in [false, true] {
        let get = |path| tree.lookup(&[path], as_json).expect("there").bytes().to_vec();
        assert_eq!(get("whole"), b"12345678901234567890123");
        assert_eq!(get("list"), b"[1.10,1e3,-0]");
        assert_eq!(get("huge"), b"1e999");
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_document() {
    assert!(MetadataTree::from_json_str("\u{feff}{\"a\": 1}").is_ok());
}
