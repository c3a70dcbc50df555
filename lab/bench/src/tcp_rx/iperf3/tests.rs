use super::*;

#[test]
fn parameters_say_how_many_streams_or_why_not() {
    assert_eq!(streams_of(&json!({"tcp": true, "parallel": 4})).unwrap(), 4);
    assert_eq!(streams_of(&json!({"tcp": true})).unwrap(), 1);
    for (parameters, word) in [
        (json!({"udp": true}), "-u"),
        (json!({"tcp": true, "reverse": 1}), "-R"),
        (json!({"tcp": true, "bidirectional": true}), "--bidir"),
        (json!({"tcp": true, "parallel": 0}), "0 streams"),
        (json!({"tcp": true, "parallel": 1000}), "1000 streams"),
        (json!({"tcp": true, "parallel": "x"}), "streams"),
        (json!([1]), "TCP"),
    ] {
        let e = streams_of(&parameters).unwrap_err().to_string();
        assert!(e.contains(word), "{parameters}: {e}");
    }
}

#[test]
fn results_are_added_up_and_echoed() {
    let sent = sent_of(&json!({"streams": [{"id": 1, "bytes": 10}, {"id": 3, "bytes": 5}]})).unwrap();
    assert_eq!((sent.bytes(), sent.streams.len()), (15, 2));
    for odd in [json!({}), json!({"streams": [{"id": 1}]}), json!({"streams": [{"bytes": -1, "id": 1}]})] {
        assert!(sent_of(&odd).is_err(), "{odd}");
    }
    let huge = json!({"streams": [{"id": 1, "bytes": u64::MAX}, {"id": 2, "bytes": 2}]});
    assert_eq!(sent_of(&huge).unwrap().bytes(), u64::MAX);
}

#[test]
fn json_is_bounded() {
    let mut bytes = Vec::new();
    write_json(&mut bytes, &json!({"a": 1})).unwrap();
    assert_eq!(read_json(&mut &bytes[..]).unwrap(), json!({"a": 1}));
    let error = |bytes: &[u8]| format!("{:#}", read_json(&mut &bytes[..]).unwrap_err());
    assert!(error(&u32::MAX.to_be_bytes()).contains("4294967295 bytes"));
    assert!(error(&bytes[..bytes.len() - 1]).contains("in part"));
    assert!(error(&[0, 0]).contains("no parameters"));
    assert!(error(&[0, 0, 0, 1, b'{']).contains("no JSON"));
}
