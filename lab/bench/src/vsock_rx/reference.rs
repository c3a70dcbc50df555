//! Figures that were published for mapped receive in a kernel, to compare ratios with.
//!
//! They are those of the patch set "virtio/vsock: experimental zerocopy receive", version 3
//! (Arseniy Krasnov, 2022, netdev mailing list). The machine was a Celeron N2930 with 4 cores, the
//! guest a real one under KVM, the amount 2 GiB.
//!
//! The archived tables hold three of the four figures of a cell:
//!
//! - seconds of the server's send loop (A),
//! - seconds of the client's receive loop (B),
//! - nanoseconds of a dequeue (D).
//!
//! The seconds in dequeue calls (C) are not in them. Their dequeues are calls of the kernel without
//! a look at the bytes.

use serde::Serialize;

use super::options::ReceiveMode;
use crate::case::Direction;

/// Bytes of a dequeue, column by column.
pub const LENS: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];

/// A cell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell {
    /// A: seconds of the send loop.
    pub send_seconds: f64,
    /// B: seconds of the receive loop.
    pub loop_seconds: f64,
    /// D: nanoseconds of a dequeue.
    pub dequeue_ns: f64,
}

type Row = [(f64, f64, f64); 6];

const G2H_COPY: Row = [
    (2.3, 2.4, 7039.0),
    (2.48, 2.53, 15074.0),
    (2.34, 2.38, 34975.0),
    (2.73, 2.76, 89938.0),
    (2.65, 2.68, 162384.0),
    (3.26, 3.35, 438278.0),
];
const G2H_MAPPED: Row = [
    (2.37, 2.42, 13598.0),
    (2.36, 1.96, 15821.0),
    (2.36, 2.42, 29574.0),
    (2.43, 2.43, 43265.0),
    (2.42, 2.47, 71771.0),
    (2.42, 2.46, 150927.0),
];
const H2G_COPY: Row = [
    (1.5, 5.3, 17145.0),
    (1.55, 5.00, 24172.0),
    (1.60, 5.00, 72650.0),
    (1.65, 5.00, 143496.0),
    (1.65, 5.00, 295960.0),
    (1.74, 5.00, 674146.0),
];
const H2G_MAPPED: Row = [
    (1.10, 6.21, 41855.0),
    (1.10, 6.00, 46339.0),
    (1.10, 5.48, 71988.0),
    (1.10, 5.38, 106000.0),
    (1.10, 5.35, 153064.0),
    (1.10, 5.35, 242036.0),
];

/// The published cell of a direction, a mode and a length; only copying and mapped receive were
/// published.
pub fn cell(direction: Direction, mode: ReceiveMode, len: usize) -> Option<Cell> {
    let row = match (direction, mode) {
        (Direction::Transmit, ReceiveMode::Copy) => G2H_COPY,
        (Direction::Transmit, ReceiveMode::Mapped) => G2H_MAPPED,
        (Direction::Receive, ReceiveMode::Copy) => H2G_COPY,
        (Direction::Receive, ReceiveMode::Mapped) => H2G_MAPPED,
        (_, ReceiveMode::Polling | ReceiveMode::Direct) => return None,
    };
    let (send_seconds, loop_seconds, dequeue_ns) = row[LENS.iter().position(|other| *other == len)?];
    Some(Cell { send_seconds, loop_seconds, dequeue_ns })
}

/// Mapped against copying receive, nanoseconds of a dequeue.
pub fn ratio(direction: Direction, len: usize) -> Option<f64> {
    let of = |mode| Some(cell(direction, mode, len)?.dequeue_ns);
    Some(of(ReceiveMode::Mapped)? / of(ReceiveMode::Copy)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_break_even_is_where_it_was_published() {
        let ratios = LENS.map(|len| ratio(Direction::Transmit, len).unwrap());
        assert!((ratios[0] - 1.93).abs() < 0.01 && (ratios[5] - 0.34).abs() < 0.01, "{ratios:?}");
        assert!(ratios[1] > 1.0 && ratios[2] < 1.0);
        let ratios = LENS.map(|len| ratio(Direction::Receive, len).unwrap());
        assert!(ratios[1] > 1.0 && ratios[3] < 1.0);
        assert_eq!(ratio(Direction::Transmit, 5000), None);
        assert_eq!(cell(Direction::Transmit, ReceiveMode::Direct, 4096), None);
    }
}
