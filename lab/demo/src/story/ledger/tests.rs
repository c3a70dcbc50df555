use super::*;
use serde_json::json;

#[test]
fn the_table_names_shares_reasons_and_drops() {
    let vm = json!({
        "transmit": {"frames": 10, "bytes": 1000, "zero_copied_bytes": 900,
            "copied_bytes": {"header": 60, "small": 40}, "dropped_frames": {}},
        "receive": {"frames": 0, "bytes": 0, "zero_copied_bytes": 0,
            "copied_bytes": {}, "dropped_frames": {"no_room": 3}},
    });
    let text = table(&vm, &[(Way::FromGuest, 0.5)]);
    assert!(text.contains("900 bytes (90.00 %)"), "{text}");
    assert!(text.contains("header 60 bytes, small 40 bytes"), "{text}");
    assert!(text.contains("dropped frames, host to guest: no_room 3"), "{text}");
    assert!(text.contains("zerowire net, guest to host: 0.500 s a gigabyte"), "{text}");
    let text = table_of("zerowire vsock", "packets", &vm, &[(Way::ToGuest, 0.25)]);
    assert!(text.contains("dropped packets, host to guest: no_room 3"), "{text}");
    assert!(text.contains("zerowire vsock, host to guest: 0.250 s a gigabyte"), "{text}");
}

#[test]
fn cpu_time_is_taken_between_two_moments() {
    let at = |cpu: f64, bytes: u64| json!({"cpu_seconds": cpu, "vms": [{"transmit": {"bytes": bytes}}]});
    let before = at(1.0, 500);
    assert_eq!(cpu_seconds_a_gigabyte(&before, &before, Way::FromGuest), None);
    let seconds = cpu_seconds_a_gigabyte(&before, &at(1.5, 1_000_000_500), Way::FromGuest).unwrap();
    assert!((seconds - 0.5).abs() < 1e-9, "{seconds}");
}
