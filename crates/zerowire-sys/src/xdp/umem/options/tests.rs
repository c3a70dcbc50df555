use super::*;

fn rule(options: UmemOptions, base: usize, len: usize) -> Option<String> {
    options.check(base, len).err().map(|e| e.to_string())
}

#[test]
fn each_rule_names_the_value() {
    let good = UmemOptions::default();
    assert_eq!(rule(good, 0, 4096), None);
    let cases = [
        (UmemOptions { chunk_bytes: 2047, ..good }, 0, 4096, "2047"),
        (UmemOptions { chunk_bytes: 8192, ..good }, 0, 8192, "8192"),
        (UmemOptions { chunk_bytes: 3000, ..good }, 0, 3000, "3000"),
        (UmemOptions { headroom_bytes: 3840, ..good }, 0, 4096, "3840"),
        (good, 1, 4096, "is 1:"),
        (good, 0, 4095, "4095"),
        (good, 0, 4097, "4097"),
        (UmemOptions { unaligned: true, ..good }, 0, (1 << 48) + 1, "281474976710657"),
    ];
    for (options, base, len, word) in cases {
        let text = rule(options, base, len).unwrap_or_else(|| panic!("{options:?}, {len} passed"));
        assert!(text.contains(word), "{text}");
    }
    let unaligned = UmemOptions { unaligned: true, chunk_bytes: 3000, headroom_bytes: 2743, ..good };
    assert_eq!(rule(unaligned, 4096, 4097), None);
}
