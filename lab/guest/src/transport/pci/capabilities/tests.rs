use super::*;

/// Capabilities as (type, BAR, offset, length), 32 bytes apart.
fn config(capabilities: &[(u8, u8, u32, u32)]) -> Vec<u8> {
    let mut config = vec![0; 256];
    config[STATUS] = 1 << 4;
    config[FIRST] = 0x40;
    for (number, &(kind, bar, offset, len)) in capabilities.iter().enumerate() {
        let at = 0x40 + 24 * number;
        let next = if number + 1 < capabilities.len() { at + 24 } else { 0 };
        config[at..at + 5].copy_from_slice(&[VENDOR, next as u8, 20, kind, bar]);
        config[at + 8..at + 12].copy_from_slice(&offset.to_le_bytes());
        config[at + 12..at + 16].copy_from_slice(&len.to_le_bytes());
        config[at + 16..at + 20].copy_from_slice(&4u32.to_le_bytes());
    }
    config
}

const GOOD: [(u8, u8, u32, u32); 4] =
    [(1, 4, 0, 0x1000), (3, 4, 0x1000, 0x1000), (4, 4, 0x2000, 0x1000), (2, 4, 0x3000, 0x1000)];

#[test]
fn the_parts_are_found() {
    let found = parse(&config(&GOOD)).unwrap();
    let place = |offset| BarRange { bar: 4, offset, len: 0x1000 };
    assert_eq!((found.common, found.isr), (place(0), place(0x1000)));
    assert_eq!((found.notify, found.device), (place(0x3000), Some(place(0x2000))));
    assert_eq!(found.multiplier, 4);
}

#[test]
fn the_first_of_a_type_counts_and_reserved_bars_do_not() {
    let mut all = vec![(1, 6, 5, 5), (1, 2, 8, 64), (5, 0, 0, 0)];
    all.extend(GOOD);
    assert_eq!(parse(&config(&all)).unwrap().common, BarRange { bar: 2, offset: 8, len: 64 });
}

#[test]
fn bad_lists_are_errors() {
    for left_out in [0, 1, 3] {
        let mut some = GOOD.to_vec();
        some.remove(left_out);
        assert!(parse(&config(&some)).unwrap_err().contains("modern"), "without {left_out}");
    }
    let mut short = GOOD;
    short[0].3 = 55;
    assert!(parse(&config(&short)).unwrap_err().contains("too short"));
    let mut looped = config(&GOOD[..1]);
    looped[0x41] = 0x40;
    assert!(parse(&looped).is_err());
    let mut far = config(&GOOD);
    far[FIRST] = 0xfc;
    far[0xfc] = VENDOR;
    assert!(parse(&far).unwrap_err().contains("ends at 256"));
    assert!(parse(&config(&GOOD)[..64]).unwrap_err().contains("root"));
    assert!(parse(&[0; 256]).unwrap_err().contains("no list"));
}
