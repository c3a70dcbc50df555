//! The published figures that the table's rows are compared with.
//!
//! They are those of "packet: zerocopy packet_snd" (Willem de Bruijn, 2014, netdev mailing list).
//! They give thousands of packets a second over loopback to a UDP socket, sender and receiver in
//! one thread.
//!
//! Its columns build on each other:
//!
//! - `zc` lends, but the kernel copies for the receiver on the same machine.
//! - `!ubufs` leaves that copy out (a hack).
//! - `recvmmsg` also reads notifications in batches.
//! - `!callback` leaves notifications out (a hack).

use serde::Serialize;

use super::case::{Column, PAYLOADS, SinkKind};

/// A row, in thousands a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Row {
    /// Copying send.
    pub no_zc: f64,
    /// Lent, copied by the kernel, each notification awaited.
    pub zc: f64,
    /// Lent, not copied, each notification awaited.
    pub no_ubufs: f64,
    /// Lent, not copied, notifications in batches.
    pub recvmmsg: f64,
    /// Lent, not copied, no notifications.
    pub no_callback: f64,
}

const ROWS: [[f64; 5]; 7] = [
    [573.0, 368.0, 359.0, 439.0, 517.0],
    [569.0, 368.0, 361.0, 441.0, 507.0],
    [572.0, 299.0, 340.0, 408.0, 478.0],
    [564.0, 300.0, 338.0, 412.0, 486.0],
    [475.0, 247.0, 331.0, 405.0, 479.0],
    [328.0, 177.0, 324.0, 385.0, 450.0],
    [218.0, 117.0, 307.0, 359.0, 417.0],
];

/// The published row of a payload.
pub fn row(payload: usize) -> Option<Row> {
    let [no_zc, zc, no_ubufs, recvmmsg, no_callback] =
        ROWS[PAYLOADS.iter().position(|other| *other == payload)?];
    Some(Row { no_zc, zc, no_ubufs, recvmmsg, no_callback })
}

/// The published rate of a column against that of copying, where one was published for a sink that
/// does the same. A veth copies, as `zc` did. An ifb doesn't, as with `!ubufs` and `recvmmsg`.
pub fn ratio(column: Column, sink: SinkKind, payload: usize) -> Option<f64> {
    let row = row(payload)?;
    let rate = match (column, sink) {
        (Column::Zc, SinkKind::Veth) => row.zc,
        (Column::Zc, SinkKind::Ifb) => row.no_ubufs,
        (Column::ZcBatched, SinkKind::Ifb) => row.recvmmsg,
        _ => return None,
    };
    Some(rate / row.no_zc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_published_rows() {
        let close = |ratio: Option<f64>, to: f64| (ratio.unwrap() - to).abs() < 0.005;
        assert!(close(ratio(Column::Zc, SinkKind::Veth, 65_000), 0.537));
        assert!(close(ratio(Column::Zc, SinkKind::Ifb, 65_000), 1.408));
        assert!(close(ratio(Column::ZcBatched, SinkKind::Ifb, 65_000), 1.647));
        assert!(close(ratio(Column::ZcBatched, SinkKind::Ifb, 1), 0.766));
        assert_eq!(ratio(Column::ZcBatched, SinkKind::Veth, 1), None);
        assert_eq!(ratio(Column::Zc, SinkKind::Ifb, 5000), None);
        assert_eq!(row(100).unwrap().no_callback, 478.0);
    }
}
