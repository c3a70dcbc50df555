use proptest::prelude::*;

use super::*;

/// RFC 1071 as it is written there.
fn simple(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
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
            let ptr = run.as_ptr().cast_mut().into();
            let mut guest = Checksum::new();
            add_guest(&mut guest, &Segment { ptr, len: run.len() as u32, region: 0 });
            sums.add_sum(guest);
            at = cut;
        }
        // 0 and 0xffff are the same number; only all zeros have the former.
        prop_assert_eq!(runs.folded(), simple(bytes));
        prop_assert_eq!(sums.folded(), simple(bytes));
    }
}
