use super::*;
use crate::compare::tests::sample_reports;

/// The raw socket takes 400 ns a frame, the port 440; CPU time rises with the rounds alike.
fn rows() -> Vec<Bandwidth> {
    let mut report = sample_reports().swap_remove(1);
    report.lines[0].variant = RAW.to_owned();
    report.lines[1].variant = "zerowire xdp".to_owned();
    bandwidths(&report)
}

#[test]
fn ratios_to_the_raw_socket_are_of_the_same_round() {
    let [raw, port] = &rows()[..] else { panic!("two rows expected") };
    assert!(raw.bandwidth_to_raw_socket.is_none() && raw.load_to_raw_socket.is_none());
    // 60 000 bytes in 400 ns; of nine rounds the middle one takes six times the CPU time of the
    // warm-up before them.
    assert!((raw.gigabits_per_second.median - 1200.0).abs() < 1e-6);
    assert!((raw.cpu_load_percent.median - 600.0).abs() < 1e-6);
    assert!((port.bandwidth_to_raw_socket.unwrap().median - 400.0 / 440.0).abs() < 1e-9);
    assert!((port.load_to_raw_socket.unwrap().median - 1.0).abs() < 1e-9);
    assert!((port.per_cpu_to_raw_socket.unwrap().max - 400.0 / 440.0).abs() < 1e-9);
}

#[test]
fn the_published_gain_is_more_for_a_cpu_too() {
    let [raw, zero_copy] = PUBLISHED;
    assert_eq!((raw.middle_load(), zero_copy.middle_load()), (130.0, 150.0));
    assert!((zero_copy.gigabits_per_cpu() / raw.gigabits_per_cpu() - 1.34).abs() < 0.01);
}

#[test]
fn charts_have_a_group_of_published_figures() {
    let rows = rows();
    for (shown, words) in [
        (Shown::Rate, ["Bandwidth of a stream, 60000 B frames", "Gb/s"]),
        (Shown::Load, ["CPU load of a stream, 60000 B frames", "percent of one CPU"]),
    ] {
        let chart = chart(&Machine::default(), &rows, shown);
        assert_eq!(chart.groups, ["transmit hot", "published"]);
        let svg = chart.render().unwrap();
        for word in words.into_iter().chain([RAW, "zerowire xdp", "published: zero copy"]) {
            assert!(svg.contains(word), "{word} is missing");
        }
    }
}
