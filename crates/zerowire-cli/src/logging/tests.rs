use super::*;

#[test]
fn lines_that_find_no_room_are_counted_and_wait_for_nothing() {
    let (lines, queue) = sync_channel(2);
    let writer = Writer { lines, shared: Arc::default() };
    for n in 0..50 {
        writer.hand("a", || format!("{n}\n"));
    }
    assert_eq!(writer.shared.lost.load(Ordering::Relaxed), 48);
    assert!(matches!(queue.try_recv(), Ok(LogLine::Text(first)) if first == "0\n"));
    // The log reports what is suppressed even where no further line comes.
    let (lines, queue) = sync_channel(1000);
    let writer = Writer { lines, shared: Arc::default() };
    for n in 0..500 {
        writer.hand("b", || format!("{n}\n"));
    }
    assert_eq!(queue.try_iter().filter(|line| matches!(line, LogLine::Suppressed)).count(), 1);
}

#[test]
fn a_level_is_a_word() {
    for word in LEVELS {
        for given in [word, &word.to_uppercase(), &word.replacen('e', "E", 1)] {
            assert_eq!(filter_of(given).expect("a level").to_string(), word);
        }
    }
    for word in ["zerowire=debug", "warn,zerowire_vsock=trace", "loud", "", "off", "0", "5"] {
        let error = format!("{:#}", filter_of(word).expect_err("no level"));
        assert!(error.contains(&format!("log level '{word}': give error, warn")), "{error}");
    }
}

#[test]
fn lines_are_of_the_vm_that_they_name() {
    let served = ServedVms::default();
    served.enter("other");
    for (vm, text, want) in [
        (None, "vm0: listening", ("vm0", None, "vm0: listening")),
        (None, "other: reset", ("other", Some("other"), "reset")),
        (None, "nothing to read", ("", None, "nothing to read")),
        (Some("a"), "queue 0: broken", ("a", Some("a"), "queue 0: broken")),
        (Some("a"), "a: connected", ("a", Some("a"), "connected")),
        (Some("a"), "ab: connected", ("a", Some("a"), "ab: connected")),
        (Some("a"), "other: connected", ("a", Some("a"), "other: connected")),
        (Some("a: b"), "a: b: connected", ("a: b", Some("a: b"), "connected")),
    ] {
        let got = attribute(vm, text, &served);
        assert_eq!((got.key, got.vm, got.message), want, "{vm:?} {text}");
    }
    served.enter("other");
    served.leave("other");
    assert!(served.has("other"), "another thread serves it");
    served.leave("other");
    assert_eq!(attribute(None, "other: reset", &served).vm, None);
}

#[test]
fn what_is_left_out_is_said_in_each_format() {
    for (key, of) in [("web", "web"), ("", "log")] {
        let text = suppressed_line(LogFormat::Text, key, 7);
        assert!(text.starts_with(&format!(" WARN {of}: 7 further lines are left out: at most")), "{text}");
        let text = suppressed_line(LogFormat::Journal, key, 7);
        assert!(text.starts_with(&format!("<4>{of}: 7 further lines are left out: at most")), "{text}");
    }
    let line: serde_json::Value =
        serde_json::from_str(&suppressed_line(LogFormat::Json, "web", 7)).expect("JSON");
    assert_eq!(
        (&line["key"], &line["suppressed"], &line["level"]),
        (&"web".into(), &7.into(), &"warn".into())
    );
    let line: serde_json::Value = serde_json::from_str(&lost_line(LogFormat::Json, 3)).expect("JSON");
    assert_eq!(line["lost"], 3);
    let text = lost_line(LogFormat::Text, 3);
    assert_eq!(text, " WARN log: 3 lines are lost: standard error did not take them\n");
}

/// A subscriber for one thread, whose lines the test reads.
#[test]
fn fields_and_spans_reach_the_line() {
    let (lines, queue) = sync_channel(100);
    let writer = Writer { lines, shared: Arc::default() };
    let layer = Lines { writer: Some(writer), ..Lines::default() };
    tracing::subscriber::with_default(Registry::default().with(layer), || {
        let span = tracing::error_span!("vm", name = "web").entered();
        tracing::warn!(payloads = 3, why = %"no room", "taken back");
        drop(span);
        tracing::info!(vm = "mail", "listening");
        tracing::info!("web: gone");
    });
    let lines: Vec<_> = queue
        .try_iter()
        .map(|line| match line {
            LogLine::Text(text) => text,
            _ => panic!("a line of text"),
        })
        .collect();
    let want =
        [" WARN web: taken back payloads=3 why=no room\n", " INFO mail: listening\n", " INFO web: gone\n"];
    assert_eq!(lines, want);
}
