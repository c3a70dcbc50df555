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
    let changed = merge(&vm, b"{\"metadata\": \"/n\", \"mac\": null}").expect("a patch");
    assert_eq!(changed.metadata.as_deref(), Some("/n".as_ref()));
    assert_eq!((changed.mac, changed.port.as_str()), (None, "tap:a"));
    assert_eq!(merge(&vm, b"{}"), Ok(vm.clone()));
    assert_eq!(merge(&vm, b"{\"port\": null}").expect_err("no port").pointer, "");
    assert_eq!(merge(&vm, b"{\"port\": []}").expect_err("a list").pointer, "/port");
    assert_eq!(merge(&vm, b"{\"prt\": 1}").expect_err("unknown").pointer, "/prt");
    assert!(merge(&vm, b"[]").is_err());
    let deep = format!("{{\"port\": {}", "[".repeat(60_000));
    assert!(merge(&vm, deep.as_bytes()).expect_err("deep").text.contains("recursion limit"));
}
