use super::*;
use proptest::prelude::*;

/// RFC 1071 as it is written there.
fn simple(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn of(bytes: &[u8]) -> Checksum {
    let mut sum = Checksum::new();
    sum.add(bytes);
    sum
}

#[test]
fn the_example_of_rfc_1071() {
    let sum = of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!((sum.folded(), sum.finish()), (0xddf2, !0xddf2));
    assert_eq!(of(&[0xff, 0xff]).finish_nonzero(), 0xffff);
    assert_eq!((of(&[]).finish(), of(&[0x12]).folded()), (0xffff, 0x1200));
}

#[test]
fn nothing_overflows() {
    let ones = vec![0xff; 1 << 20];
    assert_eq!(of(&ones).folded(), 0xffff);
    let mut many = Checksum::new();
    for _ in 0..1000 {
        many.add(&ones[..65_535]);
    }
    assert_eq!(many.folded(), simple(&ones[..2]));
}

#[test]
fn a_word_can_be_replaced() {
    let mut sum = of(&[0x12, 0x34, 0xab, 0xcd]);
    sum.take_word(0xabcd);
    sum.add_word(0x0102);
    assert_eq!(sum.folded(), of(&[0x12, 0x34, 0x01, 0x02]).folded());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_cut_of_any_bytes_has_the_sum_of_the_whole(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        shift in 0usize..8,
    ) {
        let shift = shift.min(bytes.len());
        let bytes = &bytes[shift..];
        let mut cuts: Vec<_> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut runs, mut sums, mut at) = (Checksum::new(), Checksum::new(), 0);
        for cut in cuts.into_iter().chain([bytes.len()]) {
            let run = &bytes[at..cut];
            runs.add(run);
            sums.add_sum(of(run));
            at = cut;
        }
        // 0 and 0xffff are the same number; only all zeros have the former.
        prop_assert_eq!(runs.folded(), simple(bytes));
        prop_assert_eq!(sums.folded(), simple(bytes));
    }
}
