use super::*;

#[test]
fn lines_that_find_no_room_are_counted_and_wait_for_nothing() {
    let (lines, queue) = sync_channel(2);
    let writer = Writer { lines, shared: Arc::default() };
    for n in 0..50 {
        writer.hand("a", format!("{n}\n"));
    }
    assert_eq!(writer.shared.lost.load(Ordering::Relaxed), 48);
    assert!(matches!(queue.try_recv(), Ok(LogLine::Text(first)) if first == "0\n"));
    // The log reports what is suppressed even where no further line comes.
    let (lines, queue) = sync_channel(1000);
    let writer = Writer { lines, shared: Arc::default() };
    for n in 0..500 {
        writer.hand("b", format!("{n}\n"));
    }
    assert_eq!(queue.try_iter().filter(|line| matches!(line, LogLine::Suppressed)).count(), 1);
}

#[test]
fn a_level_is_a_word() {
    for word in LEVELS {
        assert_eq!(filter_of(word).expect("a level").to_string(), word);
    }
    for word in ["zerowire=debug", "warn,zerowire_vsock=trace", "loud"] {
        let error = format!("{:#}", filter_of(word).expect_err("no level"));
        assert!(error.contains(&format!("log level '{word}': give error, warn")), "{error}");
    }
}

#[test]
fn lines_begin_with_the_vm_whose_they_are() {
    for (vm, text, want) in [
        (None, "vm0: listening", ("vm0", "vm0: listening")),
        (None, "nothing to read", ("", "nothing to read")),
        (Some("a"), "queue 0: broken", ("a", "a: queue 0: broken")),
        (Some("a"), "a: connected", ("a", "a: connected")),
        (Some("a"), "ab: connected", ("a", "a: ab: connected")),
        (Some("a: b"), "a: b: connected", ("a: b", "a: b: connected")),
    ] {
        let (of, said) = line(Level::WARN, vm, text);
        assert_eq!((of, said.trim_end()), (want.0, &*format!(" WARN {}", want.1)), "{text}");
    }
    let (_, long) = line(Level::ERROR, None, &"ä".repeat(LINE_BYTES));
    assert!(long.len() <= LINE_BYTES && long.ends_with("ä\n"), "{}", long.len());
}
