//! Figures as people read them.

/// What stands where a figure is unknown, or nothing moved.
pub const NONE: &str = "-";

/// A number of frames or bytes.
pub fn count(number: f64) -> String {
    match number {
        n if n >= 1e11 => format!("{:.0}G", n / 1e9),
        n if n >= 1e8 => format!("{:.0}M", n / 1e6),
        // A drop in ten seconds is not none.
        n if n > 0.0 && n < 9.95 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

/// Bytes as gigabits (10⁹ bits).
pub fn gigabits(bytes: f64) -> String {
    let gigabits = bytes * 8.0 / 1e9;
    if gigabits >= 100.0 { format!("{gigabits:.1}") } else { format!("{gigabits:.3}") }
}

/// A share in percent.
pub fn share(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NONE.to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
}

/// A time in its two largest units.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, _) => format!("{hours} h {} min", minutes % 60),
        (days, ..) => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_a_few_are_not_none() {
        for (number, want) in [
            (0.0, "0"),
            (0.1, "0.1"),
            (9.9, "9.9"),
            (9.97, "10"),
            (1_234_567.4, "1234567"),
            (123_456_789.0, "123M"),
            (98_765_432_100.0, "98765M"),
            (123_456_789_000.0, "123G"),
        ] {
            assert_eq!(count(number), want);
        }
        assert_eq!(
            (gigabits(0.0), gigabits(1.25e9), gigabits(2e10)),
            ("0.000".into(), "10.000".into(), "160.0".into())
        );
        assert_eq!(
            (share(None), share(Some(0.5)), share(Some(1.0))),
            ("-".into(), "50.0 %".into(), "100.0 %".into())
        );
        for (seconds, want) in
            [(0.9, "0 s"), (61.0, "1 min 1 s"), (7265.0, "2 h 1 min"), (90_000.0, "1 d 1 h"), (-1.0, "0 s")]
        {
            assert_eq!(duration(seconds), want);
        }
    }
}
