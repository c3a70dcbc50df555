use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn what_goes_out_comes_back(address in 0u64..=MASK, cookie in 0u16..=MAX_COOKIE) {
        match encode(address, cookie) {
            Some(encoded) => {
                prop_assert_eq!(decode(encoded), (address, cookie));
                // The kernel's bug can't change it.
                prop_assert_eq!(encoded & 1, 0);
                prop_assert_eq!(plain(encoded), address);
            }
            None => prop_assert!(address < 2 * u64::from(cookie) + 1),
        }
    }
}

#[test]
fn limits() {
    assert_eq!(encode(0, 0), Some(0));
    assert_eq!(encode(1, 0), Some(1 << 48));
    assert_eq!(encode(0, 1), None);
    assert_eq!(encode(2, 1), Some(2 << 48));
    assert_eq!(encode(MASK + 1, 0), None);
    assert_eq!(encode(0x20000, MAX_COOKIE + 1), None);
    assert_eq!(chunk(0x1234_0000_0000_5678), 0x5678);
    assert_eq!(plain(0x0100_0000_0000_5678), 0x5778);
}
