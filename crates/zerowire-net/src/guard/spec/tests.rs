use super::*;

fn own_mac() -> MacAddress {
    "52:54:00:00:00:01".parse().expect("an address")
}

fn guard(text: &str) -> FrameGuard {
    FrameGuard::parse(text, Some(own_mac())).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn checks_are_read_and_errors_name_what_is_wrong() {
    for text in
        ["mac=52:54:00:00:00:02+vlan=7+ip=fd00::/64+10.0.0.2+arp+nd+storm=1000", "vlan=off", "ip=10.0.0.0/8"]
    {
        assert_eq!(guard(text).to_string(), text);
    }
    let own = guard("ip=10.0.0.2+nd=on+mac=on+arp=on");
    assert_eq!(own.to_string(), "mac=52:54:00:00:00:01+ip=10.0.0.2+arp+nd");
    assert_eq!(FrameGuard::parse(&own.to_string(), None), Ok(own));
    for (text, word) in [
        ("", "'' is not known"),
        ("on", "'on' is not known"),
        ("mac=off", "'off': give six bytes"),
        ("mac+10.0.0.2", "'10.0.0.2' is not known"),
        ("ip=10.0.0.2+vlan=off+10.0.0.3", "'10.0.0.3' is not known"),
        ("mac+mac", "give 'mac' once"),
        ("ip=10.0.0.2+ip=10.0.0.3", "give 'ip' once"),
        ("ip=10.0.0", "'10.0.0' is no IP address"),
        ("ip=10.0.0.0/33", "'10.0.0.0/33' is no IP address"),
        ("ip=fd00::/129", "'fd00::/129' is no IP address"),
        ("ip=10.0.0.2/24", "has bits behind its prefix"),
        ("ip=fd00::2/64", "has bits behind its prefix"),
        ("ip=0.0.0.0", "no address of one host"),
        ("ip=::", "no address of one host"),
        ("ip=224.0.0.1", "no address of one host"),
        ("ip=ff02::1", "no address of one host"),
        ("ip=255.255.255.255", "no address of one host"),
        ("vlan=0", "a number from 1 to 4094"),
        ("vlan=4095", "a number from 1 to 4094"),
        ("storm", "'storm' is not known"),
        ("storm=0", "from 1 to 1000000"),
        ("storm=1000001", "from 1 to 1000000"),
        ("arp", "'arp' compares with the guest's MAC address"),
        ("ip=10.0.0.2+nd", "'nd' compares with the guest's MAC address"),
    ] {
        let e = FrameGuard::parse(text, Some(own_mac())).expect_err(text).to_string();
        assert!(e.starts_with(&format!("guard '{text}': ")) && e.contains(word), "{e}");
    }
    let e = FrameGuard::parse("mac", None).expect_err("no address").to_string();
    assert!(e.contains("give mac=MAC"), "{e}");
    let many: Vec<_> = (0..65).map(|n| format!("10.0.0.{n}/32")).skip(1).collect();
    assert_eq!(guard(&format!("ip={}", many.join("+"))).to_string().matches('+').count(), 63);
    let e = FrameGuard::parse(&format!("ip={}+10.0.1.1", many.join("+")), None).expect_err("too many");
    assert!(e.to_string().contains("at most 64 addresses"), "{e}");
}
