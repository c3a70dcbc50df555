use super::*;
use serde_json::json;

fn report(euid: u32, qemu: &str, kvm: &str) -> Value {
    json!({"machine": {"euid": euid}, "checks": [
        {"id": "vm.qemu", "outcome": qemu, "found": "7.2.22 (/usr/bin/qemu-system-x86_64)"},
        {"id": "vm.kvm", "outcome": kvm, "found": "/dev/kvm"},
    ]})
}

#[test]
fn each_machine_has_a_line_that_works_there() {
    let line = |shown, report: &Value, interface: Option<&str>| {
        let next = choose(shown, &facts(report, interface.map(ToOwned::to_owned)));
        assert!(next.command.chars().count() <= 78, "{next:?}");
        assert!(next.why.ends_with(':'), "{next:?}");
        next
    };
    let (root, user) = (report(0, "degraded", "missing"), report(1000, "ok", "ok"));
    assert_eq!(line(Shown::Soft, &root, None).command, "make demo");
    assert!(line(Shown::Soft, &root, None).why.contains("QEMU 7.2.22"));
    assert!(line(Shown::Soft, &report(0, "missing", "missing"), None).why.contains("downloads"));
    assert!(line(Shown::Soft, &user, None).command.contains("zerowire vsock"));
    assert!(line(Shown::Soft, &report(1000, "missing", "ok"), None).command.ends_with("doctor"));
    assert!(line(Shown::Vm, &root, None).why.contains("no KVM"));
    assert!(line(Shown::Vm, &report(0, "ok", "ok"), None).why.contains("KVM is here"));
    assert!(line(Shown::Vm, &root, Some("eth1")).command.ends_with("--port xdp:eth1"));
}

#[test]
fn an_interface_is_unused_if_the_host_has_no_address_there() {
    let dir = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for name in ["eth0", "eth1", "eth2", "veth0", "wlan0", "down0", "port0"] {
        let file = |file: &str| format!("sys/class/net/{name}/{file}");
        put(&file("type"), "1\n");
        put(&file("operstate"), if name == "down0" { "down\n" } else { "up\n" });
        if name != "veth0" {
            put(&file("device/vendor"), "");
        }
    }
    put("sys/class/net/wlan0/phy80211/name", "");
    put("sys/class/net/port0/master/name", "");
    put("proc/net/route", "Iface Destination Gateway\neth0 00000000 0100000A\n");
    let link_local = "fe800000000000000000000000000001 03 40 20 80 eth2\n";
    let global = "20010db8000000000000000000000001 02 40 00 80 eth1\n";
    put("proc/net/if_inet6", &format!("{link_local}{global}"));
    assert_eq!(unused_interface(dir.path()).as_deref(), Some("eth2"));
    put("proc/net/route", "Iface\neth0 0\neth2 0\n");
    assert_eq!(unused_interface(dir.path()), None);
}
