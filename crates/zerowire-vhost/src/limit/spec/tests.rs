use super::*;

fn parsed(text: &str) -> Limit {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

const fn bucket(rate: u64, size: u64, one_time_burst: u64) -> Option<BucketSpec> {
    Some(BucketSpec { rate, size, one_time_burst })
}

#[test]
fn limits_are_parsed_with_their_units() {
    for (text, bytes, operations) in [
        ("100M/s,burst=10M,ops=10k/s", bucket(100_000_000, 10_000_000, 0), bucket(10_000, 1000, 0)),
        ("100M/s+burst=10M+ops=10k/s", bucket(100_000_000, 10_000_000, 0), bucket(10_000, 1000, 0)),
        ("1Mbit/s", bucket(125_000, 12_500, 0), None),
        ("40Gbit/s", bucket(5_000_000_000, 500_000_000, 0), None),
        ("12500kB/s,once=1G", bucket(12_500_000, 1_250_000, 1_000_000_000), None),
        ("ops=7/s,ops-burst=3,ops-once=100", None, bucket(7, 3, 100)),
        ("once=5,burst=9,5/s", bucket(5, 9, 5), None),
        ("8bit/s", bucket(1, 1, 0), None),
        ("1T/s", bucket(1_000_000_000_000, 100_000_000_000, 0), None),
    ] {
        let limit = parsed(text);
        assert_eq!((limit.bytes(), limit.operations()), (bytes, operations), "{text}");
        assert_eq!(parsed(&limit.to_string()), limit, "{limit}");
    }
    assert_eq!(parsed("1M/s").to_string(), "1000000/s,burst=100000");
    assert_eq!(parsed("ops=5k/s").to_string(), "ops=5000/s,ops-burst=500");
}

#[test]
fn errors_name_the_value_the_rule_and_the_remedy() {
    for (bad, words) in [
        ("", "give BYTES/s"),
        ("100M", "'100M': give BYTES/s"),
        ("M/s", "'M/s'"),
        ("-1/s", "'-1/s'"),
        ("1.5M/s", "'1.5M/s'"),
        ("99999999999999999999/s", "give BYTES/s"),
        ("9999T/s", "at most 1125899906842624"),
        ("0/s", "at least 1/s"),
        ("7bit/s", "8bit/s"),
        ("ops=0/s", "at least 1/s"),
        ("1M/s,ops=5", "'ops=5'"),
        ("burst=5M", "burst=5000000 without a rate"),
        ("1M/s,ops-burst=5", "ops-burst=5 without a rate"),
        ("1M/s,ops-once=5", "ops-once=5 without a rate"),
        ("1M/s,burst=999", "burst=999: at least 1000, what comes in a millisecond"),
        ("1M/s,2M/s", "give it once"),
        ("1M/s,burst=5k,burst=6k", "'burst=6k'"),
        ("1M/s,size=5", "'size' is not known"),
        ("1M/s,", "''"),
        ("1€/s", "'1€/s'"),
    ] {
        let error = bad.parse::<Limit>().expect_err(bad).to_string();
        assert!(error.starts_with(&format!("limit '{bad}': ")) && error.contains(words), "{bad}: {error}");
    }
}
