//! What is rendered is what the formats allow: read strictly, line by line.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_capture::CaptureStats;
use zerowire_net::{DirectionStats, LinkState, LinkStats, Negotiated, PortState, VmStats};
use zerowire_vhost::host::KickTimes;
use zerowire_vhost::serve::VmProcess;
use zerowire_vsock::{KickTotals, LimitTotals, VsockTotals, VsockVmStats};

use super::*;

/// A metric as its lines have it.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    unit: Option<String>,
    /// Value by labels.
    samples: BTreeMap<String, f64>,
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The labels of a sample, which must be well formed.
fn labels(text: &str) -> Vec<(String, String)> {
    let mut rest = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).expect("braces");
    let mut found = Vec::new();
    loop {
        let (name, value) = rest.split_once("=\"").expect("NAME=\"…");
        assert!(is_name(name), "{name}");
        let mut text = String::new();
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next().expect("an end of the value") {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect("an escape").1 {
                    'n' => text.push('\n'),
                    c @ ('\\' | '"') => text.push(c),
                    other => panic!("\\{other}"),
                },
                (_, '\n') => panic!("a bare end of line"),
                (_, c) => text.push(c),
            }
        };
        found.push((name.to_owned(), text));
        rest = &value[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    assert_eq!(rest, "");
    let names: BTreeSet<_> = found.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), found.len(), "each label once: {text}");
    found
}

/// Reads a page. Each metric comes once, with its head before its samples.
fn read(page: &str, form: Exposition) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut now = String::new();
    let mut is_over = false;
    for line in page.split_inclusive('\n') {
        let line = line.strip_suffix('\n').expect("each line ends");
        assert!(!is_over, "nothing behind # EOF");
        if line == "# EOF" {
            is_over = true;
        } else if let Some(head) = line.strip_prefix("# ") {
            let mut words = head.splitn(3, ' ');
            let [what, name, text] = [(); 3].map(|()| words.next().expect("three words"));
            if what == "HELP" {
                assert!(
                    is_name(name) && families.insert(name.to_owned(), Family::default()).is_none(),
                    "{line}"
                );
                now = name.to_owned();
            }
            assert_eq!(name, now, "{line}");
            let family = families.get_mut(name).expect("HELP comes first");
            assert!(family.samples.is_empty(), "the head stands before the samples: {line}");
            match what {
                "HELP" => family.help = text.to_owned(),
                "TYPE" => family.kind = text.to_owned(),
                "UNIT" => family.unit = Some(text.to_owned()),
                other => panic!("{other}"),
            }
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let at = series.find('{').unwrap_or(series.len());
            let (name, rest) = series.split_at(at);
            let family = families.get_mut(&now).expect("a head before the samples");
            let suffix = name.strip_prefix(now.as_str()).expect("the metric's name");
            let labels = if rest.is_empty() { Vec::new() } else { labels(rest) };
            let wanted: &[&str] = match family.kind.as_str() {
                "counter" if form == Exposition::OpenMetrics => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            assert!(wanted.contains(&suffix), "{line}");
            assert_eq!(labels.iter().any(|(name, _)| name == "le"), suffix == "_bucket", "{line}");
            let value: f64 = value.parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let series = if family.kind == "histogram" { format!("{suffix}{rest}") } else { rest.to_owned() };
            assert_eq!(family.samples.insert(series, value), None, "each series once: {line}");
        }
    }
    assert_eq!(is_over, form == Exposition::OpenMetrics);
    families
}

/// Kicks of 3 µs, 5 µs and 2 s.
fn kicks() -> KickHistogram {
    let times = KickTimes::default();
    for microseconds in [3, 5, 2_000_000] {
        times.add(Duration::from_micros(microseconds));
    }
    times.snapshot()
}

fn server(names: &[&str]) -> ServerStats<VmStats> {
    let vm = |name: &&str| {
        let counters = Counters::default();
        counters.frames.add(7);
        counters.zero_copied_bytes.add(1000);
        counters.copied(CopyReason::Small, 64);
        counters.copied(CopyReason::Header, 6);
        counters.dropped_many(DropReason::NoRoom, 3);
        let transmit = DirectionStats {
            totals: counters.snapshot(),
            frames_by_queue: vec![7],
            limit_waits: 4,
            limit_wait_seconds: 0.25,
            kick_seconds: kicks(),
        };
        let vm = VmStats {
            name: (*name).to_owned(),
            socket: "/s".to_owned(),
            port: "tap:t".to_owned(),
            connected: true,
            connections: 2,
            connection_errors: 1,
            ring_errors: 0,
            unsure_frames: 0,
            out_of_order_frames: 0,
            last_error: None,
            path: String::new(),
            negotiated: Negotiated {
                features: Vec::new(),
                protocol_features: String::new(),
                device_status: 0,
            },
            port_state: PortState {
                interface: "t".to_owned(),
                interface_state: LinkState::Up,
                link: Some(LinkStats { up: false, disconnects: 1 }),
                kernel_copies: "",
                capture: Some(CaptureStats { captured: 5, lost: 2 }),
            },
            transmit,
            receive: DirectionStats::default(),
        };
        ServedStats { vm, process: VmProcess { restarts: 3, child_answers: false } }
    };
    ServerStats {
        version: "1.2.3",
        uptime_seconds: 1.5,
        cpu_seconds: 0.25,
        confined: true,
        vms: names.iter().map(vm).collect(),
    }
}

/// A vsock server with one VM.
fn vsock_server(name: &str) -> ServerStats<VsockVmStats> {
    let counters = Counters::default();
    counters.frames.add(3);
    counters.copied(CopyReason::Sibling, 64);
    counters.zero_copied_bytes.add(100);
    counters.dropped_many(DropReason::NoRoom, 2);
    let totals = VsockTotals {
        connections_opened: 5,
        connections_open: 2,
        limits: LimitTotals { receive_limit_waits: 4, ..LimitTotals::default() },
        transmit: counters.snapshot(),
        kicks: KickTotals { transmit_kick_seconds: kicks(), ..KickTotals::default() },
        ..VsockTotals::default()
    };
    let vm = VsockVmStats {
        name: name.to_owned(),
        socket: "/s".to_owned(),
        cid: 3,
        uds: "/u".to_owned(),
        groups: vec!["default".to_owned()],
        connected: true,
        connections: 2,
        connection_errors: 1,
        features: Vec::new(),
        protocol_features: String::new(),
        device_status: 0,
        path: "",
        kernel_copies: "",
        totals,
        capture: Some(CaptureStats { captured: 5, lost: 2 }),
    };
    ServerStats { version: "1.2.3", ..ServerStats::since(Instant::now(), vec![vm]) }
}

#[test]
fn both_forms_can_be_read_and_say_the_same() {
    let name = "b \"quoted\" \\ and\nbroken";
    say_the_same(&server(&["a", name]));
    say_the_same(&vsock_server(name));
}

fn say_the_same<V: VmReport>(stats: &ServerStats<V>) {
    let open = read(&render(stats, Exposition::OpenMetrics), Exposition::OpenMetrics);
    let text = read(&render(stats, Exposition::Text), Exposition::Text);
    assert_eq!(open.len(), text.len());
    for (name, family) in &open {
        assert!(name.starts_with("zerowire_") && !name.ends_with("_total"), "{name}");
        assert!(family.help.ends_with('.'), "{name}");
        let other = match family.kind.as_str() {
            "counter" => &text[&format!("{name}_total")],
            "gauge" | "histogram" => &text[name],
            kind => panic!("{name} is a {kind}"),
        };
        assert_eq!((&family.kind, &family.help), (&other.kind, &other.help), "{name}");
        assert_eq!(family.samples, other.samples, "{name}");
        // A unit is the end of the name.
        let unit = ["bytes", "seconds"].into_iter().find(|unit| name.ends_with(&format!("_{unit}")));
        assert_eq!(family.unit.as_deref(), unit, "{name}");
    }
}

#[test]
fn figures_are_those_of_the_statistics() {
    let metrics = read(&render(&server(&["a"]), Exposition::Text), Exposition::Text);
    for (name, labels, value) in [
        ("zerowire_build_info", "{version=\"1.2.3\"}", 1.0),
        ("zerowire_vms", "", 1.0),
        ("zerowire_uptime_seconds", "", 1.5),
        ("zerowire_cpu_seconds_total", "", 0.25),
        ("zerowire_confined", "", 1.0),
        ("zerowire_restarts_total", "{vm=\"a\"}", 3.0),
        ("zerowire_child_answers", "{vm=\"a\"}", 0.0),
        ("zerowire_front_end_connected", "{vm=\"a\"}", 1.0),
        ("zerowire_connections_total", "{vm=\"a\"}", 2.0),
        ("zerowire_connection_errors_total", "{vm=\"a\"}", 1.0),
        ("zerowire_interface_up", "{vm=\"a\"}", 1.0),
        ("zerowire_link_up", "{vm=\"a\"}", 0.0),
        ("zerowire_captured_frames_total", "{vm=\"a\"}", 5.0),
        ("zerowire_capture_lost_frames_total", "{vm=\"a\"}", 2.0),
        ("zerowire_frames_total", "{vm=\"a\",direction=\"transmit\"}", 7.0),
        ("zerowire_frames_total", "{vm=\"a\",direction=\"receive\"}", 0.0),
        ("zerowire_bytes_total", "{vm=\"a\",direction=\"transmit\"}", 1070.0),
        ("zerowire_copied_bytes_total", "{vm=\"a\",direction=\"transmit\",reason=\"small\"}", 64.0),
        ("zerowire_dropped_frames_total", "{vm=\"a\",direction=\"transmit\",reason=\"no_room\"}", 3.0),
    ] {
        assert_eq!(metrics[name].samples.get(labels), Some(&value), "{name}{labels}");
    }
}

/// Buckets hold those of the ones before, the last one holds all, and the sum is between what the
/// buckets allow.
#[test]
fn a_histogram_of_kicks_agrees_with_itself() {
    let metrics = read(&render(&server(&["a"]), Exposition::Text), Exposition::Text);
    let kicks = &metrics["zerowire_kick_seconds"].samples;
    let transmit =
        |suffix: &str, le: &str| kicks[&format!("{suffix}{{vm=\"a\",direction=\"transmit\"{le}}}")];
    for (bound, want) in
        [("0.000001", 0.0), ("0.000004", 1.0), ("0.000016", 2.0), ("1.048576", 2.0), ("+Inf", 3.0)]
    {
        assert_eq!(transmit("_bucket", &format!(",le=\"{bound}\"")), want, "{bound}");
    }
    assert_eq!((transmit("_count", ""), transmit("_sum", "")), (3.0, 2.000_008));
    let vsock = read(&render(&vsock_server("a"), Exposition::Text), Exposition::Text);
    assert_eq!(vsock["zerowire_vsock_kick_seconds"].samples, *kicks);
}

#[test]
fn figures_of_vsock_are_those_of_the_statistics() {
    let metrics = read(&render(&vsock_server("a"), Exposition::Text), Exposition::Text);
    for (name, labels, value) in [
        ("zerowire_vms", "", 1.0),
        ("zerowire_front_end_connected", "{vm=\"a\"}", 1.0),
        ("zerowire_connections_total", "{vm=\"a\"}", 2.0),
        ("zerowire_confined", "", 0.0),
        ("zerowire_vsock_restarts_total", "{vm=\"a\"}", 0.0),
        ("zerowire_vsock_child_answers", "{vm=\"a\"}", 1.0),
        ("zerowire_vsock_open_connections", "{vm=\"a\"}", 2.0),
        ("zerowire_vsock_connections_total", "{vm=\"a\"}", 5.0),
        ("zerowire_vsock_capture_lost_packets_total", "{vm=\"a\"}", 2.0),
        ("zerowire_vsock_packets_total", "{vm=\"a\",direction=\"transmit\"}", 3.0),
        ("zerowire_vsock_bytes_total", "{vm=\"a\",direction=\"transmit\"}", 164.0),
        ("zerowire_vsock_limit_waits_total", "{vm=\"a\",direction=\"receive\"}", 4.0),
        ("zerowire_vsock_copied_bytes_total", "{vm=\"a\",direction=\"transmit\",reason=\"sibling\"}", 64.0),
        ("zerowire_vsock_dropped_packets_total", "{vm=\"a\",direction=\"transmit\",reason=\"no_room\"}", 2.0),
    ] {
        assert_eq!(metrics[name].samples.get(labels), Some(&value), "{name}{labels}");
    }
}

/// Metrics of both devices.
fn both() -> BTreeMap<String, Family> {
    let mut metrics = read(&render(&server(&["a"]), Exposition::Text), Exposition::Text);
    metrics.extend(read(&render(&vsock_server("a"), Exposition::Text), Exposition::Text));
    metrics
}

/// A file of the repository.
fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).expect("the file")
}

const DASHBOARD: &str = "dist/grafana/zerowire.json";
const RULES: &str = "dist/prometheus/zerowire.rules.yml";

/// The words of a text that begin like metrics.
fn used(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c)).filter(|w| w.starts_with("zerowire_"));
    words.map(str::to_owned).collect()
}

/// The dashboard and the alerts use series and labels that exist.
#[test]
fn files_for_grafana_and_prometheus_name_metrics_that_exist() {
    let mut series = BTreeSet::new();
    let mut known = BTreeSet::from(["instance".to_owned()]);
    for (name, family) in both() {
        let suffixes: &[_] = if family.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        series.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
        for sample in family.samples.keys().filter_map(|sample| sample.find('{').map(|at| &sample[at..])) {
            known.extend(labels(sample).into_iter().map(|(label, _)| label));
        }
    }
    for (text, mark) in [(file(DASHBOARD), "{{"), (file(RULES), "{{ $labels.")] {
        for name in used(&text) {
            assert!(series.contains(&name), "{name}");
        }
        for label in text.split(mark).skip(1).map(|rest| rest.split(['}', ' ']).next().expect("a part")) {
            assert!(known.contains(label), "{label}");
        }
    }
}

/// What stands in the parentheses at the beginning of a text.
fn parenthesized(text: &str) -> &str {
    let mut depth = 0;
    let end = text.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    &text[1..end.expect("parentheses that close")]
}

/// Selectors and aggregations name labels that these metrics have, and those that Prometheus adds.
#[test]
fn files_for_grafana_and_prometheus_name_labels_of_their_metrics() {
    let metrics = both();
    let has = |series: &str, label: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| series.strip_suffix(end));
        let samples = &metrics.get(series).unwrap_or_else(|| &metrics[histogram.expect("a metric")]).samples;
        let all = samples.keys().filter_map(|sample| sample.find('{').map(|at| labels(&sample[at..])));
        label == "instance" || all.flatten().any(|(known, _)| known == label)
    };
    let mut checked = 0;
    for text in [file(DASHBOARD), file(RULES)] {
        for (at, _) in text.match_indices("zerowire_") {
            let rest = &text[at..];
            let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().expect("a name");
            let selector = rest[name.len()..].strip_prefix('{').and_then(|s| s.split('}').next());
            for label in selector.into_iter().flat_map(|s| s.split(',')).map(|s| s.split(['=', '!']).next()) {
                assert!(has(name, label.expect("a label")), "{name}: {label:?}");
                checked += 1;
            }
        }
        for (at, by) in text.match_indices(" by (") {
            let list = parenthesized(&text[at + by.len() - 1..]);
            let of = text[at + by.len() + list.len() + 1..].trim_start();
            for (name, label) in
                used(parenthesized(of)).iter().flat_map(|n| list.split(", ").map(move |l| (n, l)))
            {
                assert!(has(name, label), "{name}: {label}");
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "{checked}");
    // VMs of several programs may have one name.
    assert!(file(RULES).split(" by (").skip(1).all(|list| list.starts_with("instance")));
}

/// But for what another panel shows as well, or only a report of an error needs.
#[test]
fn each_metric_of_vsock_has_a_panel() {
    let shown = used(&file(DASHBOARD));
    let apart = [
        "control_packets_total",
        "limit_waits_total",
        "mapped_windows",
        "stale_credit_packets_total",
        "zero_copied_packets_total",
    ];
    let apart = apart.map(|name| format!("zerowire_vsock_{name}"));
    for name in both().into_keys().filter(|name| name.starts_with("zerowire_vsock_")) {
        let is_shown = shown.iter().any(|shown| shown.strip_suffix("_bucket").unwrap_or(shown) == name);
        assert!(is_shown != apart.contains(&name), "{name}");
    }
}

#[test]
fn panels_of_the_dashboard_lie_beside_each_other() {
    let dashboard: serde_json::Value = serde_json::from_str(&file(DASHBOARD)).expect("JSON");
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a number"));
        for place in (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y))) {
            assert!(place.0 < 24 && places.insert(place), "{panel}");
        }
    }
}

#[test]
fn docs_list_each_metric_and_no_other() {
    let metrics = both();
    let listed = used(&file("docs/control.md"));
    for name in metrics.keys() {
        assert!(listed.contains(name), "docs/control.md lists {name}");
    }
    for name in listed {
        assert!(metrics.contains_key(&name), "{name} in docs/control.md");
    }
}

/// `promtool` where it is installed; false where it is not.
fn promtool(arguments: &[&str], input: &str) -> bool {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else { return false };
    child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("its output");
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    true
}

#[test]
fn promtool_finds_no_fault() {
    let pages =
        [render(&server(&["a", "b"]), Exposition::Text), render(&vsock_server("a"), Exposition::Text)];
    let rules = format!("{}/../../{RULES}", env!("CARGO_MANIFEST_DIR"));
    let is_there = pages.iter().all(|page| promtool(&["check", "metrics"], page))
        && promtool(&["check", "rules", &rules], "");
    if !is_there {
        zerowire_testkit::not_run("promtool check: it is not installed (Debian: the package prometheus)");
    }
}
