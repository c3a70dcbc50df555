use super::*;
use crate::vsock::compare::tests::{reports_of, sample_reports};

fn report() -> VsockReport {
    VsockReport {
        head: ReportHead::example("the machine was busy"),
        rx_buffer: 4096,
        cases: sample_reports(),
        failed_parts: vec!["round trips: no answer".into()],
        ..VsockReport::default()
    }
}

#[test]
fn text_names_machine_case_working_set_and_ratio() {
    let text = report().text();
    for word in [
        "Linux 6.18.0, Some CPU, 2 CPUs (virtual)",
        "Note: the machine was busy.",
        "Guest to host",
        "hot 256 KiB",
        "1.20..1.20",
        "FAILED: broken (guest -> host, 4 KiB writes, 64 KiB credit, hot)",
        "FAILED: round trips: no answer",
    ] {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

#[test]
fn messages_have_columns_and_charts_of_their_own() {
    assert!(!report().text().contains("calls/message"));
    let socket = SocketKind::Seqpacket;
    let report = VsockReport { socket, cases: reports_of(socket), ..report() };
    let text = report.text();
    for word in ["of messages (SOCK_SEQPACKET)", "messages/s", "calls/message", "4 KiB messages"] {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["socket"], &json["cases"][0]["socket"]), (&"seqpacket".into(), &"seqpacket".into()));
    assert!(json["cases"][0]["variants"][1]["system_calls_per_message"].as_f64().unwrap() > 0.0);
    let cases: Vec<&CaseReport> = report.cases.iter().collect();
    let svg = report.chart(Direction::Transmit, 65_536, &cases).render().unwrap();
    assert!(svg.contains("length of messages"));
}

#[test]
fn json_carries_every_run() {
    let json = serde_json::to_value(report()).unwrap();
    let case = &json["cases"][0];
    assert_eq!(case["direction"], "transmit");
    assert_eq!(case["write_len"], 4096);
    assert_eq!(case["variants"][1]["samples"].as_array().unwrap().len(), 3);
    assert!(case["variants"][0]["ratio_to_floor"].is_null());
}

#[test]
fn charts_name_the_machine() {
    let report = report();
    let cases: Vec<&CaseReport> = report.cases.iter().collect();
    let svg = report.chart(Direction::Transmit, 65_536, &cases).render().unwrap();
    for word in ["Linux 6.18.0", "64 KiB hot", "zerowire"] {
        assert!(svg.contains(word), "{word} is missing");
    }
}
