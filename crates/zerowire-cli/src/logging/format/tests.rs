use std::time::Duration;

use super::*;

fn record<'a>(vm: Option<&'a str>, message: &'a str) -> LogRecord<'a> {
    LogRecord { level: Level::WARN, vm, message, fields: &[] }
}

fn json(record: &LogRecord<'_>) -> Value {
    let line = LogFormat::Json.line(record, UNIX_EPOCH);
    assert!(line.len() <= LINE_BYTES && line.ends_with("}\n"), "{} bytes: {line}", line.len());
    assert_eq!(line.matches('\n').count(), 1, "one line: {line}");
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

#[test]
fn a_line_has_the_vm_the_message_and_the_fields() {
    let fields = [("status", Value::from(404)), ("target", Value::from("/a b"))];
    let record = LogRecord { level: Level::INFO, vm: Some("web"), message: "asked", fields: &fields };
    assert_eq!(LogFormat::Text.line(&record, UNIX_EPOCH), " INFO web: asked status=404 target=/a b\n");
    assert_eq!(LogFormat::Journal.line(&record, UNIX_EPOCH), "<6>web: asked status=404 target=/a b\n");
    assert_eq!(
        LogFormat::Json.line(&record, UNIX_EPOCH + Duration::from_micros(1_500_000)),
        "{\"time\":\"1970-01-01T00:00:01.500000Z\",\"level\":\"info\",\"vm\":\"web\",\"status\":404,\
         \"target\":\"/a b\",\"message\":\"asked\"}\n"
    );
    let nobody = LogRecord { vm: None, fields: &[], ..record };
    assert_eq!(LogFormat::Text.line(&nobody, UNIX_EPOCH), " INFO asked\n");
    assert_eq!(json(&nobody).get("vm"), None);
}

#[test]
fn each_level_has_a_word_and_a_priority() {
    for (level, word, priority) in [
        (Level::ERROR, "error", 3),
        (Level::WARN, "warn", 4),
        (Level::INFO, "info", 6),
        (Level::DEBUG, "debug", 7),
        (Level::TRACE, "trace", 7),
    ] {
        let record = LogRecord { level, ..record(None, "m") };
        assert_eq!(json(&record)["level"], word);
        assert_eq!(LogFormat::Journal.line(&record, UNIX_EPOCH), format!("<{priority}>m\n"));
    }
}

#[test]
fn what_comes_from_outside_begins_no_line() {
    let hostile = record(Some("a"), "name\n<0>forged\x1b[2J\r\u{9b}");
    for format in [LogFormat::Text, LogFormat::Journal] {
        let line = format.line(&hostile, UNIX_EPOCH);
        assert!(line.ends_with("a: name\\n<0>forged\\u{1b}[2J\\r\\u{9b}\n"), "{line:?}");
    }
    assert_eq!(json(&hostile)["message"], hostile.message);
}

#[test]
fn a_line_has_a_length_whatever_is_in_it() {
    for filler in ["a", "ä", "\"", "\n", "\x01", "😀"] {
        let long = filler.repeat(2 * LINE_BYTES);
        for format in [LogFormat::Text, LogFormat::Journal] {
            let line = format.line(&record(Some("web"), &long), UNIX_EPOCH);
            assert!((LINE_BYTES - 10..=LINE_BYTES).contains(&line.len()), "{filler:?}: {}", line.len());
        }
        let said = json(&record(Some(&long), &long));
        let kept = said["message"].as_str().expect("a message");
        assert!(!kept.is_empty() && long.starts_with(kept), "{filler:?}");
        // A field that leaves no room for the message goes.
        let fields = [("target", Value::from(long.as_str()))];
        let said = json(&LogRecord { fields: &fields, ..record(None, "what happened") });
        assert_eq!((&said["message"], said.get("target")), (&"what happened".into(), None), "{filler:?}");
    }
}

#[test]
fn fields_take_no_key_of_a_line() {
    let fields = OWN_KEYS.map(|key| (key, Value::from("forged")));
    let said = json(&LogRecord { fields: &fields, ..record(Some("web"), "true") });
    assert_eq!(
        (&said["vm"], &said["message"], &said["level"]),
        (&"web".into(), &"true".into(), &"warn".into())
    );
}

#[test]
fn times_are_those_of_the_calendar() {
    for (seconds, want) in [
        (0, "1970-01-01T00:00:00.000000Z"),
        (951_782_399, "2000-02-28T23:59:59.000000Z"),
        (951_782_400, "2000-02-29T00:00:00.000000Z"),
        (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
        (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
        (1_735_689_600, "2025-01-01T00:00:00.000000Z"),
        (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
    ] {
        assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), want);
    }
}
