use super::*;
use crate::experiment::{Runs, Tried};

fn sample(cpu_seconds: f64) -> TcpSample {
    let tally = Tally {
        bytes: 2_000_000_000,
        zero_copied: 500_000_000,
        calls: 4000,
        pieces: 8000,
        ..Tally::default()
    };
    TcpSample { tally, seconds: 4.0, cpu_seconds, memory_bytes: None }
}

fn tried(variant: WayName, samples: &[TcpSample]) -> Tried<TcpRx> {
    let runs = Runs { samples: samples.to_vec(), failed: None };
    Tried { variant, bases: bases(), facts: TcpFacts::default(), runs }
}

#[test]
fn figures_are_what_they_say() {
    let plain = tried(WayName::Plain, &[sample(1.0), sample(3.0)]);
    let epoll = tried(WayName::Epoll, &[sample(2.0), sample(3.0)]);
    let nothing = tried(WayName::Recv, &[]);
    let all = vec![nothing, plain, epoll];
    let case: CellReport<TcpRx> = CellReport::of(Connections { connections: 1 }, (), all, Vec::new());
    let line = case.line(&WayName::Plain).expect("samples");
    let median = |key| line.middle(key).expect("a figure");
    assert_eq!(median("gigabits_per_second"), 4.0);
    assert_eq!(median("cpu_seconds_a_gigabyte"), 1.0);
    assert_eq!((median("calls_a_megabyte"), median("pieces_a_megabyte")), (2.0, 4.0));
    assert_eq!(median("cpu_to_epoll"), 0.75);
    assert_eq!((line.spread("cpu_to_recv"), line.spread("memory_a_byte")), (None, None));
    assert_eq!(median("zero_copied_share"), 0.25);
    assert!(case.line(&WayName::Recv).is_none());
}
