use super::*;

/// A QEMU that says these lines and hangs up when dropped.
fn scripted(lines: &str) -> (Result<Qmp>, UnixStream, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(lines.as_bytes()).unwrap();
    (Qmp::new(ours, &dir.path().join("log")), theirs, dir)
}

const START: &str = "{\"QMP\":{}}\n{\"return\":{},\"id\":1}\n";

#[test]
fn answers_and_events_are_told_apart() {
    let script =
        format!("{START}{{\"event\":\"STOP\",\"data\":{{\"n\":1}}}}\n{{\"return\":{{\"a\":7}},\"id\":2}}\n");
    let (qmp, _qemu, _dir) = scripted(&script);
    let mut qmp = qmp.unwrap();
    assert_eq!(qmp.execute("x", json!({})).unwrap()["a"], 7);
    let event = qmp.wait_event("STOP", ANSWER, |data| data["n"] == 1).unwrap();
    assert_eq!(event["event"], "STOP");
    assert!(qmp.wait_event("STOP", Duration::from_millis(1), |_| true).is_err());
}

#[test]
fn an_error_carries_the_reason_and_the_command() {
    let script = format!("{START}{{\"error\":{{\"class\":\"G\",\"desc\":\"no such bus\"}},\"id\":2}}\n");
    let (qmp, _qemu, _dir) = scripted(&script);
    let error = qmp.unwrap().execute("device_add", json!({"bus": "b9"})).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("no such bus") && error.contains("b9"), "{error}");
}

#[test]
fn a_silent_end_is_an_error() {
    let (qmp, qemu, _dir) = scripted(START);
    drop(qemu);
    assert!(qmp.unwrap().execute("x", json!({})).is_err());
}
