use super::*;

fn filled(kind: u32, cookie: u64, port_at: usize, port: u16) -> Vec<u32> {
    let mut bytes = [0u8; RULE_WORDS * 4];
    bytes[16..20].copy_from_slice(&kind.to_ne_bytes());
    bytes[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
    bytes[168..176].copy_from_slice(&cookie.to_ne_bytes());
    bytes[176..180].copy_from_slice(&1023u32.to_ne_bytes());
    bytes.as_chunks::<4>().0.iter().map(|w| u32::from_ne_bytes(*w)).collect()
}

#[test]
fn rules_are_read_from_the_structure() {
    let v6 = parse(&filled(5, 7, PORT_V6, 9999));
    assert_eq!(v6, Rule { location: 1023, queue: Some(7), flow: "tcp6", port: Some(9999) });
    let v4 = parse(&filled(1 | 0x8000_0000, 0, PORT_V4, 80));
    assert_eq!((v4.queue, v4.flow, v4.port), (Some(0), "tcp4", Some(80)));
    assert_eq!(parse(&filled(1, u64::MAX, PORT_V4, 0)).queue, None, "drop");
    assert_eq!(parse(&filled(1, 1 << 32 | 3, PORT_V4, 0)).queue, None, "a virtual function's");
    assert_eq!(parse(&filled(1 | 0x2000_0000, 3, PORT_V4, 0)).queue, None, "spread");
    assert_eq!(parse(&filled(0x12, 3, PORT_V4, 9)).port, None);
}

#[test]
fn loopback_has_none() {
    assert_eq!(read("lo").expect_err("no such driver").raw_os_error(), Some(libc::EOPNOTSUPP));
    assert_eq!(read("nowhere0").expect_err("none").raw_os_error(), Some(libc::ENODEV));
}
