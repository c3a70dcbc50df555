use super::*;
use zerowire_probe::queue::run;
use zerowire_sys::netlink::QueueUser;

const PLAIN: Style = Style { width: 80, colour: false };

/// Loopback is there everywhere; its report has every part.
#[test]
fn a_report_has_its_parts_in_order() {
    let one = report(&run("lo", Some(0)), &PLAIN);
    let at = |word: &str| one.find(word).unwrap_or_else(|| panic!("no {word} in {one}"));
    assert!(at("into queue 0 of lo") < at("queue number") && at("queue number") < at("Commands for"));
    assert!(at("Commands for") < at("What follows"));
    assert!(!one.contains("Receive queues") && report(&run("lo", None), &PLAIN).contains("Receive queues"));
    for text in [&one, &report(&run("lo", None), &PLAIN)] {
        let commands = ["ethtool ", "ip ", "back: "];
        let is_command = |line: &&str| commands.iter().any(|c| line.trim_start().starts_with(c));
        let wide: Vec<_> =
            text.lines().filter(|l| l.chars().count() > PLAIN.width && !is_command(l)).collect();
        assert!(wide.is_empty(), "wider than {}: {wide:#?}", PLAIN.width);
    }
    let none = report(&run("nowhere0", None), &PLAIN);
    assert!(!none.contains("Commands") && !none.contains("As a port"));
}

#[test]
fn the_text_tells_of_zero_copy_what_the_kernel_does() {
    let mut found = run("lo", None);
    let Some(settings) = &mut found.settings else { panic!("no loopback: {found:?}") };
    let mut device = settings.xdp.clone().unwrap_or_default();
    for (features, word) in
        [(Some(0x7f), "driver has AF_XDP's"), (Some(0x77), "has no zero-copy"), (None, "not tell")]
    {
        settings.xdp = features.map(|bits| {
            device.xdp_features = bits;
            device.clone()
        });
        assert!(port(settings)[0].1.contains(word), "{features:?}");
    }
    let text = report(&found, &PLAIN);
    assert!(text.contains("As a port") && text.contains("link=follow"), "{text}");
}

#[test]
fn queues_in_the_same_state_share_a_line() {
    let found = run("lo", None);
    let Some(first) = found.queues.first() else { panic!("no queue: {found:?}") };
    let list: Vec<_> = (0..4)
        .map(|n| {
            let mut queue = first.clone();
            queue.queue = n;
            queue.rules = Some(usize::from(n == 3));
            // The longest of each.
            queue.user = Some(QueueUser::Lease);
            queue.rss = Some((128, 128));
            queue
        })
        .collect();
    let mut out = String::new();
    queues(&mut out, &list);
    let lines: Vec<_> = out.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= PLAIN.width), "{out}");
    assert!(lines[1].starts_with("0 to 2") && lines[2].starts_with("3 ") && lines[2].ends_with('1'), "{out}");
}

#[test]
fn a_command_that_is_done_has_no_way_back() {
    let mut out = String::new();
    let advice = |done| Advice { purpose: "p", command: "c".to_owned(), undo: Some("u".to_owned()), done };
    command(&mut out, &advice(true), &PLAIN);
    assert_eq!(out, "  p (it is so):\n    c\n");
    command(&mut out, &advice(false), &PLAIN);
    assert!(out.ends_with("  p:\n    c\n    back: u\n"), "{out}");
}
