//! `zerowire demo` from the outside. Needs root (or user namespaces) and /dev/net/tun.

use std::process::Command;

use serde_json::Value;

/// The whole story, short: its summary must show both transfers, nearly all bytes
/// zero-copied (or their reason named), and no error.
#[test]
fn the_demo_moves_bytes_both_ways_and_says_how() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    let output = command.args(["demo", "--json", "--mib", "16"]).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");

    assert_eq!(summary["metadata"]["instance-id"], "i-demo");
    assert_eq!(summary["round_trip_microseconds"].as_array().map(Vec::len), Some(3));
    for device in [&summary, &summary["vsock"]] {
        let transfers = device["transfers"].as_array().expect("transfers");
        assert_eq!(transfers.len(), 2);
        for transfer in transfers {
            assert_eq!(transfer["bytes"], 16 << 20, "{transfer}");
        }
    }
    let vm = &summary["statistics"]["vms"][0];
    assert_eq!(vm["ring_errors"], 0, "{vm}");
    assert_eq!(vm["connection_errors"], 0, "{vm}");
    for way in ["transmit", "receive"] {
        let count = |name: &str| vm[way][name].as_u64().expect(name);
        assert!(count("bytes") >= 16 << 20, "{vm}");
        let copied = vm[way]["copied_bytes"].as_object().expect("copied bytes by reason");
        let reasons: u64 = copied.values().filter_map(Value::as_u64).sum();
        // What a guest that is late with its buffers makes the program copy depends on the load of
        // the machine: it is named, and does not count against the path.
        let late = copied.get("overflow").and_then(Value::as_u64).unwrap_or(0);
        assert!((count("zero_copied_bytes") + late) * 10 >= count("bytes") * 9, "{way}: {vm}");
        assert!(count("zero_copied_bytes") > count("bytes") / 4, "{way}: {vm}");
        assert!(reasons > 0, "{way}: {vm}");
    }
    let vm = &summary["vsock"]["statistics"]["vms"][0];
    assert_eq!((&vm["ring_errors"], &vm["connection_errors"]), (&0.into(), &0.into()), "{vm}");
    assert_eq!((&vm["connections_opened"], &vm["connections_open"]), (&2.into(), &0.into()), "{vm}");
    for way in ["transmit", "receive"] {
        let count = |name: &str| vm[way][name].as_u64().expect(name);
        assert_eq!(count("bytes"), 16 << 20, "payload, each byte once: {way}: {vm}");
        // How much a host thread that is late makes the program hold depends on the load of the machine.
        let held = vm[way]["copied_bytes"]["held"].as_u64().unwrap_or(0);
        assert_eq!(count("zero_copied_bytes") + held, 16 << 20, "{way}: {vm}");
        assert!(count("system_calls") < count("frames"), "{way}: {vm}");
    }
}

/// What QEMU and libvirt ask a back end before they use it (QEMU docs/interop/vhost-user.rst,
/// "Backend program conventions").
#[test]
fn capabilities_are_printed_as_json() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    let output = command.args(["net", "--print-capabilities"]).output().expect("the program starts");
    assert!(output.status.success());
    let capabilities: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");
    assert_eq!(capabilities["type"], "net");
}
