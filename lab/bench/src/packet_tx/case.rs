//! What is measured: a sink, a payload length, a working set, and how much of it at a time; and the
//! columns of the table, the ways of sending that are compared.

use std::fmt;

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use crate::amount::amount;
use crate::case::WorkingSet;
use crate::words::{by_words, wrong};

/// Payload lengths of the published table in bytes.
pub const PAYLOADS: [usize; 7] = [1, 10, 100, 1000, 10_000, 30_000, 65_000];
/// The longest payload. The longest UDP datagram of IPv4 has 65 507 bytes. With its headers it must
/// fit into 17 pages and into a frame of 65 536 bytes of a transmit ring.
pub const LARGEST_PAYLOAD: usize = 65_000;
/// Payloads handed over at a time where a way takes several: as many as an AF_XDP socket transmits
/// in one system call (TX_BATCH_SIZE, net/xdp/xsk.c).
pub const BATCH: usize = 32;

/// Where the frames go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SinkKind {
    /// ifb: true zero copy, every frame is dropped
    Ifb,
    /// veth to a UDP socket: the negative control, the kernel copies lent pages for a receiver on
    /// this machine
    Veth,
}

by_words!(SinkKind);

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TxCase {
    /// Where to.
    pub sink: SinkKind,
    /// How much memory the payloads take.
    pub working_set: WorkingSet,
    /// Payload length in bytes.
    pub payload: usize,
}

impl TxCase {
    /// All combinations. Refuses lengths that can't be sent.
    pub fn all(sinks: &[SinkKind], working_sets: &[WorkingSet], payloads: &[usize]) -> Result<Vec<Self>> {
        if let Some(size) = payloads.iter().find(|size| !(1..=LARGEST_PAYLOAD).contains(*size)) {
            wrong!("a payload of {size} bytes: choose 1 to {LARGEST_PAYLOAD}");
        }
        let mut cases = Vec::new();
        for &sink in sinks {
            for &working_set in working_sets {
                cases.extend(payloads.iter().map(|&payload| Self { sink, working_set, payload }));
            }
        }
        Ok(cases)
    }

    /// Payloads of one sample: 10 to 40 ms of CPU time, whole batches. `quick` takes a quarter of
    /// it.
    pub fn sends(&self, quick: bool) -> usize {
        let batches = match self.payload {
            0..=2000 => 1024,
            2001..=20_000 => 400,
            20_001..=40_000 => 200,
            _ => 128,
        };
        BATCH * amount(if quick { batches / 4 } else { batches }).next_multiple_of(2)
    }

    /// Payloads between two looks at the receiver.
    pub fn burst(&self) -> usize {
        2 * BATCH
    }
}

impl fmt::Display for TxCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} B {}", self.sink, self.payload, self.working_set)
    }
}

/// A way of sending. Its text is the one of the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// packet socket, send(), copying
    // What the published table calls no-zc.
    Send,
    /// packet socket, sendmmsg(), copying
    Sendmmsg,
    /// PACKET_TX_RING, payload resident in the ring, headers built in place
    Ring,
    /// PACKET_TX_RING, each frame copied into the ring
    RingCopied,
    /// AF_XDP in copy mode, frames resident in its memory
    Xdp,
    /// UDP, send(), copying
    Udp,
    /// UDP, MSG_ZEROCOPY, each notification awaited (published: zc)
    Zc,
    /// UDP, MSG_ZEROCOPY, notifications read a batch at a time (published: recvmmsg)
    ZcBatched,
    /// UDP, io_uring SEND_ZC, a batch at a time
    SendZc,
    /// UDP, io_uring SEND_ZC from registered memory
    SendZcFixed,
    /// UDP, the library chooses by measurement
    Auto,
}

by_words!(Column);

impl Column {
    /// Whether the kernel says of each send whether it copied. A transmit ring only says that a
    /// slot is free again. What its proof counts as not copied left the ring uncopied, and a veth
    /// copies it later.
    pub fn kernel_tells(self) -> bool {
        self != Self::Ring
    }

    /// Whether only one such socket can be open on the device at a time.
    pub fn is_exclusive(self) -> bool {
        self == Self::Xdp
    }

    /// The copying column that it is compared with: the same kind of socket, and the same work but
    /// for the copy.
    pub fn copying(self) -> Self {
        match self {
            Self::Send | Self::Sendmmsg | Self::Ring | Self::RingCopied | Self::Xdp => Self::Send,
            _ => Self::Udp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_multiply_out_and_lengths_are_checked() {
        let cases = TxCase::all(SinkKind::value_variants(), &WorkingSet::ALL, &PAYLOADS).unwrap();
        assert_eq!(cases.len(), 28);
        assert_eq!(cases[0].to_string(), "ifb 1 B hot");
        for size in [0, 65_001] {
            let error = TxCase::all(&[SinkKind::Ifb], &WorkingSet::ALL, &[size]).unwrap_err();
            assert!(error.to_string().contains(&size.to_string()));
        }
    }

    #[test]
    fn samples_are_whole_batches_and_bursts() {
        for case in TxCase::all(&[SinkKind::Ifb], &[WorkingSet::Hot], &PAYLOADS).unwrap() {
            for quick in [false, true] {
                assert!(case.sends(quick) > 0 && case.sends(quick).is_multiple_of(case.burst()));
            }
        }
    }
}
