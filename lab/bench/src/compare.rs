//! The comparison of ways to move frames between a guest and its port.

use serde::Serialize;

use crate::bare_calls::BARE_CALLS;
use crate::case::Case;
use crate::experiment::{
    Amounts, Base, CellReport, Figure, Floored, Ledger, LedgerFacts, Plan, ReportLine, Subject,
    first_program, zero_copied,
};
use crate::programs::NamedProgram;
use crate::transfer::TransferSample;

/// The tap's floor, where another one is the floor.
pub const TAP: &str = "tap floor";
/// A plain packet socket that copies: the floor of streams on ports.
pub const RAW: &str = "raw socket";

/// The comparison.
#[derive(Debug, Clone)]
pub struct NetBench;

/// The figures of a case; the first line is the floor's.
pub type CaseReport = CellReport<NetBench>;

/// What is known of a case besides its figures.
#[derive(Debug, Clone, Serialize)]
pub struct NetFacts {
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Frames of each run.
    pub frames: usize,
}

impl Subject for NetBench {
    type Cell = Case;
    type CellFacts = NetFacts;
    type Variant = String;
    type Facts = LedgerFacts;
    type Sample = TransferSample;

    const FIGURES: &'static [Figure<Self>] = &[
        // Of all threads, in nanoseconds. The ratios are to the floor; to the bare calls and to the
        // tap's floor where they were measured; and to the first of several programs.
        Figure::<Self>::spread("cpu_ns_per_frame", |_, s| Some(s.cpu_each())),
        Figure::<Self>::ratio("ratio_to_floor", "floor", |_, s| s.cpu_each()),
        Figure::<Self>::ratio_if_any("ratio_to_bare_calls", BARE_CALLS, |_, s| s.cpu_each()),
        Figure::<Self>::ratio_if_any("cpu_to_tap_floor", TAP, |_, s| s.cpu_each()),
        Figure::<Self>::ratio_if_any("ratio_to_before", "before", |_, s| s.cpu_each()),
        Figure::<Self>::spread("frames_per_second", |_, s| Some(s.rate())),
        Figure::<Self>::spread("gigabits_per_second", |_, s| Some(s.gigabits_per_second())),
        // Of one CPU, and for a whole one.
        Figure::<Self>::spread("cpu_load_percent", |_, s| Some(100.0 * s.cpu_load())),
        Figure::<Self>::spread("gigabits_per_cpu", |_, s| Some(s.gigabits_per_cpu())),
        Figure::<Self>::ratio_if_any("bandwidth_to_raw_socket", RAW, |_, s| s.gigabits_per_second()),
        Figure::<Self>::ratio_if_any("load_to_raw_socket", RAW, |_, s| s.cpu_load()),
        Figure::<Self>::ratio_if_any("per_cpu_to_raw_socket", RAW, |_, s| s.gigabits_per_cpu()),
    ];
    const LINES: &'static str = "variants";
    const VARIANT: &'static str = "name";
}

impl Floored for NetBench {
    /// The warm-up moves one burst.
    fn amounts(case: &Case, plan: Plan) -> Amounts {
        let rounds = plan.rounds * case.rounds_for_one();
        Amounts { warm_up: case.burst(), round: case.frames(plan.quick), rounds }
    }

    fn cell_facts(case: &Case, amounts: &Amounts) -> NetFacts {
        let working_set_bytes = case.working_set.bytes();
        NetFacts { working_set_bytes, rounds: amounts.rounds, frames: amounts.round }
    }

    fn facts(_: &Case, ledger: Ledger, _: &Amounts) -> LedgerFacts {
        LedgerFacts { ledger }
    }
}

/// What a variant is compared with besides the floor.
pub(crate) fn bases(programs: &[NamedProgram], variant: &str) -> Vec<Base<String>> {
    let bare_calls = Base { label: BARE_CALLS, variant: BARE_CALLS.to_owned() };
    let bare_calls = Some(bare_calls).filter(|_| !["floor", BARE_CALLS].contains(&variant));
    bare_calls.into_iter().chain(first_program(programs, variant)).collect()
}

/// The share of the bytes that were not copied in user space.
pub(crate) fn not_copied(_: &CaseReport, line: &ReportLine<NetBench>) -> Option<String> {
    zero_copied(line, |facts| &facts.ledger)
}

#[cfg(test)]
pub(crate) mod tests;
