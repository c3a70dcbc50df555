//! Interleaved runs of several variants, case by case.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use super::case::{SocketKind, VsockCase};
use super::variant::{Sample, Variant};
use crate::interleave::{Turn, interleave};
use crate::programs::{NamedProgram, before};
use crate::progress::Progress;
use crate::record::{Failure, Plan, Record, conclude, each_case};
use crate::stats::Summary;

/// The figures of one case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// What was measured.
    #[serde(flatten)]
    pub case: VsockCase,
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Bytes of each run.
    pub bytes: usize,
    /// One entry a variant that succeeded; the first is the floor.
    pub variants: Vec<VariantReport>,
    /// Variants that failed, and why; they are not measured further in this case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

/// The figures of one variant in one case.
#[derive(Debug, Clone, Serialize)]
pub struct VariantReport {
    /// Its name.
    pub name: String,
    /// CPU seconds of the measured side for 10⁹ bytes.
    pub cpu_s_per_gb: Summary,
    /// The same divided by the floor's of the same round; `None` for the floor.
    pub ratio_to_floor: Option<Summary>,
    /// The same divided by that of the first program in the same round, where several programs were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_before: Option<Summary>,
    /// CPU seconds of the host's program for 10⁹ bytes.
    pub host_cpu_s_per_gb: Summary,
    /// 10⁶ bytes a second.
    pub megabytes_per_second: Summary,
    /// How often the measured side went to sleep for 10⁶ bytes.
    pub sleeps_per_mb: Summary,
    /// Packets with payload that the back end moved in all runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Their length on average, header left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_len: Option<f64>,
    /// System calls of the back end that moved payload, for each of these packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_calls_per_packet: Option<f64>,
    /// Messages a second, of SOCK_SEQPACKET.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_second: Option<Summary>,
    /// System calls of the back end that moved payload, for each message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_calls_per_message: Option<f64>,
    /// The back end's ledger over the warm-up and all rounds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ledger: BTreeMap<String, u64>,
    /// Every run, in order.
    pub samples: Vec<Sample>,
}

impl CaseReport {
    /// Sets each variant of a further program beside the same one of the first.
    pub(crate) fn set_beside_first(&mut self, programs: &[NamedProgram]) {
        let costs = |of: &VariantReport| of.samples.iter().map(Sample::cpu_per_gb).collect::<Vec<_>>();
        let ratio = |variant: &VariantReport| {
            let base = before(programs, &variant.name)?;
            let base = self.variants.iter().find(|other| other.name == base)?;
            Summary::ratio(&costs(variant), &costs(base))
        };
        let ratios: Vec<_> = self.variants.iter().map(ratio).collect();
        for (variant, ratio) in self.variants.iter_mut().zip(ratios) {
            variant.ratio_to_before = ratio;
        }
    }
}

/// Runs all cases. The first variant is the floor that the others are compared with.
pub fn compare(
    cases: &[VsockCase],
    variants: &mut [Box<dyn Variant>],
    plan: Plan,
) -> Result<Vec<CaseReport>> {
    let count = variants.len();
    each_case(cases, count, |_| plan.rounds, |case, progress| compare_case(case, variants, plan, progress))
}

fn compare_case(
    case: &VsockCase,
    variants: &mut [Box<dyn Variant>],
    plan: Plan,
    progress: &mut Progress,
) -> Result<CaseReport> {
    let bytes = case.sample_bytes(plan.quick);
    // The warm-up moves some bytes and checks their content.
    let runs = interleave(variants.len(), plan.rounds, case, progress, |index, turn| match turn {
        Turn::WarmUp => {
            variants[index].prepare(case).context("preparing failed")?;
            variants[index].run(case, case.warm_up_bytes(), true)
        }
        Turn::Round(_) => variants[index].run(case, bytes, false),
    });
    let moved = (case.warm_up_bytes() + plan.rounds * bytes) as u64;
    // The ledger must account for every byte.
    let record = |(runs, variant): (_, &mut Box<dyn Variant>)| {
        Record::new(runs, variant.ledger(), variant.name()).must_account_for(moved)
    };
    let records = runs.into_iter().zip(variants).map(record).collect();
    let messages = (case.socket == SocketKind::Seqpacket).then_some((case.write_len, moved));
    let report = |record, ratio| report(record, ratio, messages);
    let (variants, failures) = conclude(case, records, Sample::cpu_per_gb, report)?;
    let working_set_bytes = case.set_bytes();
    Ok(CaseReport { case: *case, working_set_bytes, rounds: plan.rounds, bytes, variants, failures })
}

/// `messages`: the length of a message and the bytes of all of them, where there are messages.
fn report(
    record: Record<Sample>,
    ratio_to_floor: Option<Summary>,
    messages: Option<(usize, u64)>,
) -> Option<VariantReport> {
    let packets = record.ledger.get("frames").copied().filter(|packets| *packets > 0);
    let per_packet = |key: &str| {
        packets.map(|packets| record.ledger.get(key).copied().unwrap_or(0) as f64 / packets as f64)
    };
    let rate = |len: usize| {
        let rates = record.samples.iter().map(|sample| sample.megabytes_per_second() * 1e6 / len as f64);
        Summary::of(rates)
    };
    let calls = record.ledger.get("system_calls").copied();
    let per_message = |(len, moved): (usize, u64)| Some(calls? as f64 * len as f64 / moved.max(1) as f64);
    Some(VariantReport {
        messages_per_second: messages.and_then(|(len, _)| rate(len)),
        system_calls_per_message: messages.and_then(per_message),
        cpu_s_per_gb: record.summary(Sample::cpu_per_gb)?,
        ratio_to_floor,
        ratio_to_before: None,
        host_cpu_s_per_gb: record.summary(Sample::host_cpu_per_gb)?,
        megabytes_per_second: record.summary(Sample::megabytes_per_second)?,
        sleeps_per_mb: record.summary(Sample::sleeps_per_mb)?,
        packets,
        packet_len: per_packet("bytes"),
        system_calls_per_packet: per_packet("system_calls"),
        name: record.name,
        ledger: record.ledger,
        samples: record.samples,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::case::{Direction, WorkingSet};

    /// A variant that costs a fixed time a byte, times the number of its run.
    struct Fixed {
        name: &'static str,
        cost: u64,
        runs: u64,
        bytes: u64,
        /// What its ledger adds to the truth.
        off: u64,
    }

    impl Variant for Fixed {
        fn name(&self) -> &str {
            self.name
        }

        fn prepare(&mut self, _: &VsockCase) -> Result<()> {
            (self.runs, self.bytes) = (0, 0);
            Ok(())
        }

        fn run(&mut self, _: &VsockCase, bytes: usize, check: bool) -> Result<Sample> {
            assert_eq!(check, self.runs == 0);
            self.runs += 1;
            self.bytes += bytes as u64;
            let time = Duration::from_nanos(self.cost * self.runs * bytes as u64 / 10);
            Ok(Sample::new(time, time / 2, time, bytes))
        }

        fn ledger(&mut self) -> Result<BTreeMap<String, u64>> {
            if self.name == "floor" {
                return Ok(BTreeMap::new());
            }
            let entries =
                [("bytes", self.bytes + self.off), ("frames", self.bytes / 4096), ("system_calls", 7)];
            Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
        }
    }

    /// A report of two cases and two variants with invented figures.
    pub(crate) fn sample_reports() -> Vec<CaseReport> {
        reports_of(SocketKind::Stream)
    }

    pub(crate) fn reports_of(socket: SocketKind) -> Vec<CaseReport> {
        let (ways, writes) = ([Direction::Transmit], [4096, 65_536]);
        let cases = VsockCase::all(socket, &ways, &writes, &[65_536], &[WorkingSet::Hot]).unwrap();
        let variant = |name, cost, off| Box::new(Fixed { name, cost, runs: 0, bytes: 0, off });
        let mut variants: Vec<Box<dyn Variant>> =
            vec![variant("floor", 10, 0), variant("zerowire", 12, 0), variant("broken", 11, 1)];
        compare(&cases, &mut variants, Plan { rounds: 3, quick: true }).unwrap()
    }

    #[test]
    fn ratios_are_of_the_same_round_and_lost_bytes_are_a_failure() {
        let reports = sample_reports();
        let [floor, other] = &reports[0].variants[..] else {
            panic!("two variants expected");
        };
        assert!(floor.ratio_to_floor.is_none() && floor.packets.is_none());
        let ratio = other.ratio_to_floor.unwrap();
        assert!((ratio.min - 1.2).abs() < 1e-6 && (ratio.max - 1.2).abs() < 1e-6);
        assert_eq!(other.samples.len(), 3);
        assert_eq!(other.packet_len, Some(4096.0));
        assert!(other.messages_per_second.is_none() && other.system_calls_per_message.is_none());
        assert_eq!(reports[0].failures[0].variant, "broken");
        assert!(reports[0].failures[0].reason.contains("ledger has"));
    }

    #[test]
    fn messages_have_a_rate_and_calls_of_their_own() {
        let reports = reports_of(SocketKind::Seqpacket);
        let [floor, other] = &reports[0].variants[..] else {
            panic!("two variants expected");
        };
        // 1 ns a byte in the first run, which warms up, 2 to 4 in the rounds.
        assert!((floor.messages_per_second.unwrap().max - 1e9 / (2.0 * 4096.0)).abs() < 1.0);
        assert_eq!(floor.system_calls_per_message, None);
        let messages = reports[0].case.warm_up_bytes() / 4096 + 3 * reports[0].bytes / 4096;
        assert!((other.system_calls_per_message.unwrap() - 7.0 / messages as f64).abs() < 1e-12);
    }
}
