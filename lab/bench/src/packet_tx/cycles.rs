//! The share of CPU time in copy routines, by perf's clock: `--cycles`.
//!
//! perf samples the sending thread while it sends. A sample belongs to the function that the CPU
//! was in, so what a copy costs others by emptying caches isn't in the share.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::case::TxCase;
use super::lab::TxLab;
use super::report::{PERCENT, PacketTx, TxVariant};
use super::run::open;
use super::source::TxSource;
use super::way::{Softirq, run};
use crate::experiment::{CellReport, Column, Digits, ReportLine, rows};
use crate::held::Held;

/// Samples a second.
const FREQUENCY: &str = "2000";
/// How long perf may take to attach.
const ATTACH: Duration = Duration::from_millis(400);
/// The file of its samples.
const SAMPLES: &str = "samples";

/// The kernel's copy routines: from and to user space, with and without a checksum, and within the
/// kernel. There skb_copy_ubufs, which makes a frame's lent pages its own, uses memcpy. These are
/// beginnings of names; `.` suffixes are compiler's clones.
const COPIES: [&str; 13] = [
    "_copy_from_iter",
    "copy_from_iter",
    "copy_from_user",
    "_copy_from_user",
    "copy_user_",
    "rep_movs",
    "csum_and_copy",
    "csum_partial_copy",
    "memcpy",
    "__memcpy",
    "__pi_memcpy",
    "skb_copy_bits",
    "copy_page",
];

/// Functions of user space that copy.
const USER_COPIES: [&str; 4] = ["__memmove", "__memcpy", "memcpy", "memmove"];

/// The shares of a sender.
#[derive(Debug, Clone, Serialize)]
pub struct CopyShares {
    /// The share of samples in the kernel's copy routines, 0 to 1.
    pub kernel_copy_share: f64,
    /// The share of samples in user space's copy routines.
    pub user_copy_share: f64,
    /// The functions with the largest shares.
    pub top: Vec<Share>,
}

/// A function's share.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Share {
    /// Its name.
    pub function: String,
    /// Whether it is the kernel's.
    pub kernel: bool,
    /// Its share of the samples, 0 to 1.
    pub share: f64,
}

/// Samples each sender of a row. `notes` says which could not be sampled.
pub fn measure(
    row: &mut CellReport<PacketTx>,
    lab: &TxLab,
    quick: bool,
    notes: &mut Vec<String>,
) -> Result<()> {
    perf_present()?;
    let case = row.at;
    let source = TxSource::new(&case, lab)?;
    for line in &mut row.lines {
        match sample(line.variant, &case, lab, &source, quick) {
            Ok(shares) => line.facts.cycles = Some(shares),
            Err(error) => notes.push(format!("cycles of {} ({case}): not measured: {error:#}", line.variant)),
        }
    }
    Ok(())
}

fn sample(
    TxVariant { column, kind }: TxVariant,
    case: &TxCase,
    lab: &TxLab,
    source: &TxSource,
    quick: bool,
) -> Result<CopyShares> {
    let softirq = Softirq::default();
    let mut way = open(column, kind, case, lab, source)?;
    let warm_up = way.warm_up();
    run(way.as_mut(), case, lab, &softirq, warm_up)?;
    let perf = Perf::start()?;
    let (begin, span) = (Instant::now(), Duration::from_millis(if quick { 300 } else { 1000 }));
    while begin.elapsed() < span {
        run(way.as_mut(), case, lab, &softirq, case.sends(true))?;
    }
    let shares = perf.stop()?;
    Ok(CopyShares {
        kernel_copy_share: sum(&shares, true, &COPIES),
        user_copy_share: sum(&shares, false, &USER_COPIES),
        top: shares.into_iter().take(5).collect(),
    })
}

fn sum(shares: &[Share], kernel: bool, names: &[&str]) -> f64 {
    let copies =
        |share: &&Share| share.kernel == kernel && names.iter().any(|name| share.function.starts_with(name));
    // The sum of no floating point numbers is -0.
    shares.iter().filter(copies).fold(0.0, |sum, share| sum + share.share)
}

fn perf_present() -> Result<()> {
    let status = Command::new("perf").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => bail!("perf does not run here; install the one of this kernel"),
        Err(error) => bail!("perf can't be run ({error}): install it"),
    }
}

/// A perf that samples the calling thread.
struct Perf {
    child: Child,
    /// Its folder has the samples.
    held: Held,
}

impl Perf {
    fn start() -> Result<Self> {
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        let held = Held::temporary()?;
        let mut command = Command::new("perf");
        command
            .args(["record", "-q", "-e", "cpu-clock", "-F", FREQUENCY, "-t", &thread, "-o"])
            .arg(held.folder().join(SAMPLES))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = held.spawn(&mut command).context("perf record")?;
        let mut perf = Self { child, held };
        std::thread::sleep(ATTACH);
        if perf.held.try_wait(&mut perf.child)?.is_some() {
            bail!("perf record ended at once: {}", perf.complaint());
        }
        Ok(perf)
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = std::io::Read::read_to_string(&mut stderr, &mut text);
        }
        text.trim().to_owned()
    }

    /// Ends the sampling; all functions, the largest share first.
    fn stop(mut self) -> Result<Vec<Share>> {
        let pid = Pid::from_raw(self.child.id() as i32).context("perf has no process id")?;
        kill_process(pid, Signal::INT)?;
        self.child.wait()?;
        let report = Command::new("perf")
            .args(["report", "--stdio", "-q", "--percent-limit", "0", "--sort", "symbol", "-i"])
            .arg(self.held.folder().join(SAMPLES))
            .stderr(Stdio::null())
            .output()
            .context("perf report")?;
        let shares = parse(&String::from_utf8_lossy(&report.stdout));
        if shares.is_empty() {
            bail!("perf took no sample: {}", self.complaint());
        }
        Ok(shares)
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        // After an error before `stop`; else it has ended and this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines such as `    53.76%  [k] read_zero`.
fn parse(text: &str) -> Vec<Share> {
    let line = |line: &str| {
        let (share, rest) = line.trim().split_once('%')?;
        let (mode, function) = rest.trim().split_once(' ')?;
        Some(Share {
            function: function.trim().split("  ").next()?.to_owned(),
            kernel: mode == "[k]",
            share: share.parse::<f64>().ok()? / 100.0,
        })
    };
    let mut shares: Vec<Share> =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

const COLUMNS: [Column<PacketTx>; 6] = [
    Column::words("case", |row, _| Some(row.at.to_string())),
    Column::words("column", |_, line| Some(line.variant.to_string())),
    Column::words("kernel copies", |_, line| Some(PERCENT.text(cycles(line)?.kernel_copy_share))),
    Column::words("user copies", |_, line| Some(PERCENT.text(cycles(line)?.user_copy_share))),
    Column::median("CPU ns/send", "cpu_ns", Digits::Three),
    Column::words("most time in", |_, line| {
        let top = cycles(line)?.top.iter().take(3);
        let top = top.map(|share| format!("{} {}", share.function, PERCENT.text(share.share)));
        Some(top.collect::<Vec<_>>().join(", "))
    }),
];

fn cycles(line: &ReportLine<PacketTx>) -> Option<&CopyShares> {
    line.facts.cycles.as_ref()
}

/// The shares as text; empty where none were measured.
pub fn text(report: &[CellReport<PacketTx>]) -> String {
    let sampled = report.iter().filter(|row| row.lines.iter().any(|line| cycles(line).is_some()));
    let sampled: Vec<_> = sampled.collect();
    match sampled.is_empty() {
        true => String::new(),
        false => {
            let table = rows(sampled, &COLUMNS).labels(2);
            format!("\nCPU time in copy routines (perf, cpu-clock):\n{}", table.render())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_summed_by_side() {
        let text = "# Samples\n\n     1.00%  [k] sock_sendmsg   -  -\n    53.75%  [k] rep_movs_alternative\n    \
                    10.00%  [k] _copy_from_iter \n     5.50%  [.] <a::B as c::D>::e  -\n     \
                    5.25%  [.] __memmove_avx_unaligned_erms\n";
        let shares = parse(text);
        assert_eq!(shares.len(), 5);
        assert_eq!(shares[2].function, "<a::B as c::D>::e");
        assert_eq!(shares[4], Share { function: "sock_sendmsg".into(), kernel: true, share: 0.01 });
        assert!((sum(&shares, true, &COPIES) - 0.6375).abs() < 1e-9);
        assert!((sum(&shares, false, &USER_COPIES) - 0.0525).abs() < 1e-9);
    }
}
