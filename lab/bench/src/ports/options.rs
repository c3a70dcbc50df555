//! What a caller can choose.

use anyhow::Result;
use clap::ValueEnum;

use crate::case::Case;
use crate::frame::{ETHERNET_LEN, SMALLEST};
use crate::options::NetOptions;
use crate::programs;
use crate::words::{by_words, some_rounds, wrong};

/// The longest frame: the MTU of the veth devices and the Ethernet header, bytes.
pub const LONGEST: usize = 1500 + ETHERNET_LEN;
/// Frame lengths where none is given.
const SIZES: [usize; 2] = [64, 1500];

/// A port of `zerowire net`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PortKind {
    /// `tap:IF`, which the back end makes itself.
    Tap,
    /// `xdp:IF`.
    Xdp,
    /// `packet:IF`.
    Packet,
}

by_words!(PortKind);

/// Rounds of each case.
pub(super) fn rounds(options: &NetOptions) -> usize {
    options.rounds.unwrap_or(if options.quick { 5 } else { 15 })
}

/// All cases. Refuses what can't be measured, with the value, and what taps alone have.
pub(super) fn cases(options: &NetOptions) -> Result<Vec<Case>> {
    let for_taps = [
        (!options.vms.is_empty(), "--vms"),
        (options.idle_vms.is_some(), "--idle-vms"),
        (options.fragment_len.is_some(), "--fragment-len"),
        (options.bare_calls, "--bare-calls"),
        (!options.which.without.is_empty(), "--without"),
    ];
    if let Some((_, name)) = for_taps.into_iter().find(|(given, _)| *given) {
        let ports = options.port.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        wrong!("{name} is for taps: leave it out, or --port {ports}");
    }
    some_rounds(rounds(options))?;
    programs::verify(&options.which.programs, options.which.gate)?;
    let sizes = options.lengths(&SIZES);
    if let Some(size) = sizes.iter().find(|size| !(SMALLEST..=LONGEST).contains(*size)) {
        wrong!(
            "frame length {size}: over a veth pair choose {SMALLEST} to {LONGEST} bytes; longer ones with --port tap"
        );
    }
    Case::all(&options.directions, sizes, &options.working_sets)
}
