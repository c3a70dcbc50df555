//! What an attacker leaves others: the rate of an honest connection beside each attack, and
//! without.
//!
//! One thread on the guests' CPU drives the attacker and the honest guest in turn, so that no
//! scheduler decides between them. While it is busy with one it can't drive the other; the controls
//! show how much that is.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use zerowire_guest::vsock::{ConnId, HOST_CID, SocketType};

use super::case::{SocketKind, WRITE_LEN};
use super::device::{PORT, SETTLE_LIMIT};
use super::guest::{Setup, VsockGuest};
use super::host::{self, HostCpu};
use super::weapons::{Attack, Weapon};
use crate::backend::BackendProcess;
use crate::case::WorkingSet;
use crate::cpu::Placement;
use crate::experiment::{CellReport, Column, Digits, Figure, ProgressLine, Runs, Subject, flat, part_cell};
use crate::guest::STALL_LIMIT;
use crate::idle::own_memory;
use crate::stats::{Summary, rotation};
use crate::table::{Table, figure};
use crate::words::by_words;

/// Packets of the honest connection before the attacker's turn: all of its credit.
const TURN: usize = 4;
/// How long both have been at it before anything counts.
const WARM_UP: Duration = Duration::from_millis(5);
/// How long an attack's prelude takes at most.
const PRELUDE_LIMIT: Duration = Duration::from_secs(3);
/// How long the host's program sleeps at most before it looks whether it is over.
const NAP_NS: i64 = 5_000_000;
/// The groups of the VMs, as keys; the first one attacks.
const GROUPS: [&str; 3] = [",groups=shared", ",groups=shared", ",groups=own"];

/// Whose connection is measured; each with its name in tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Victim {
    /// The attacker's own VM: it shares the queues.
    #[value(name = "same VM")]
    SameVm,
    /// A VM of its group: it shares the thread.
    #[value(name = "same group")]
    SameGroup,
    /// A VM in a group of its own: it shares the process.
    #[value(name = "other group")]
    OtherGroup,
}

by_words!(Victim);

/// What attacks leave their victims.
#[derive(Debug, Clone)]
pub struct Attacks;

/// A row of the table.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AttackCell {
    /// Which attack; `None` without one.
    pub attack: Option<Attack>,
}

impl fmt::Display for AttackCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.attack {
            Some(attack) => write!(f, "{attack}"),
            None => f.write_str("none"),
        }
    }
}

/// The attack itself, where nobody else sends.
#[derive(Debug, Clone, Serialize)]
pub struct AttackFacts {
    /// Its name.
    pub name: String,
    /// Packets, or programs of the host, a second.
    pub per_second: Summary,
    /// CPU seconds of the back end in a second of that.
    pub cpu_share: Summary,
    /// What its process, without guest memory, had grown by in the first of these runs.
    pub grown_bytes: u64,
}

impl Subject for Attacks {
    type Cell = AttackCell;
    type CellFacts = Option<AttackFacts>;
    type Variant = Victim;
    type Facts = ();
    /// 10⁶ bytes a second of a victim, and those without an attacker in the same round.
    type Sample = [f64; 2];

    const FIGURES: &'static [Figure<Self>] = &[
        Figure::<Self>::spread("megabytes_per_second", |_, s| Some(s[0])),
        Figure::<Self>::spread("rate_ratio", |cell, s| cell.attack.map(|_| s[0] / s[1])),
    ];
    const LINES: &'static str = "victims";
    const VARIANT: &'static str = "victim";
}

/// The figures of all attacks.
#[derive(Debug, Clone, Serialize)]
pub struct AttackReport {
    /// How long a run was, in milliseconds.
    pub run_ms: u64,
    /// Without an attacker.
    #[serde(serialize_with = "flat")]
    pub alone: [CellReport<Attacks>; 1],
    /// Attack by attack, controls first.
    pub rows: Vec<CellReport<Attacks>>,
}

/// One run.
#[derive(Debug, Clone, Copy, Default)]
struct AttackRun {
    wall: Duration,
    /// Bytes of the honest connection that its program read.
    bytes: u64,
    /// What the attacker sent.
    packets: usize,
    cpu: Duration,
    grown_bytes: u64,
}

impl AttackRun {
    fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// Measures every attack beside every victim, the host's program on `host_cpu`.
pub fn measure(
    program: &Path,
    host_cpu: HostCpu,
    (rounds, quick): (usize, bool),
    placement: &Placement,
) -> Result<AttackReport> {
    let backend = BackendProcess::start_vsock(program, &[], &GROUPS, placement)?;
    let stage = AttackStage {
        backend: &backend,
        host_cpu,
        placement,
        length: Duration::from_millis(if quick { 20 } else { 60 }),
    };
    // The first one is the run without an attack.
    let attacks: Vec<Option<Attack>> =
        std::iter::once(None).chain(Attack::value_variants().iter().copied().map(Some)).collect();
    let runs = stage.run_all(&attacks, rounds)?;
    let cell = |(attack, beside): (&Option<Attack>, &Vec<Vec<AttackRun>>)| {
        let facts =
            attack.map(|attack| facts(attack, &beside[Victim::value_variants().len()])).transpose()?;
        let ran = Victim::value_variants().iter().copied().zip(runs[0].iter().zip(beside)).map(
            |(victim, (alone, beside))| {
                let samples = alone.iter().zip(beside).map(|(alone, run)| [run.rate(), alone.rate()]);
                (victim, Runs { samples: samples.collect(), failed: None })
            },
        );
        part_cell(AttackCell { attack: *attack }, facts, None, ran)
    };
    let mut cells = attacks.iter().zip(&runs).map(cell);
    Ok(AttackReport {
        run_ms: stage.length.as_millis() as u64,
        alone: [cells.next().context("no run without an attack")??],
        rows: cells.collect::<Result<_>>()?,
    })
}

fn facts(attack: Attack, runs: &[AttackRun]) -> Result<AttackFacts> {
    let per_second = |amount: fn(&AttackRun) -> f64| {
        let rates = runs.iter().map(|run| amount(run) / run.wall.as_secs_f64().max(1e-9));
        Summary::of(rates).context("no rounds")
    };
    Ok(AttackFacts {
        name: attack.to_string(),
        per_second: per_second(|run| run.packets as f64)?,
        cpu_share: per_second(|run| run.cpu.as_secs_f64())?,
        grown_bytes: runs.iter().map(|run| run.grown_bytes).max().unwrap_or(0),
    })
}

/// Where runs take place.
struct AttackStage<'a> {
    backend: &'a BackendProcess,
    host_cpu: HostCpu,
    placement: &'a Placement,
    length: Duration,
}

impl AttackStage<'_> {
    fn guest(&self, vm: usize) -> Result<VsockGuest> {
        let setup = Setup { pool_bytes: WorkingSet::Hot.bytes(), ..Setup::default() };
        VsockGuest::connect(&self.backend.socket(vm), &setup)
    }

    /// Runs every attack beside every victim, and beside nobody at the end: runs by attack, by
    /// victim, by round.
    fn run_all(&self, attacks: &[Option<Attack>], rounds: usize) -> Result<Vec<Vec<Vec<AttackRun>>>> {
        let mut runs = vec![vec![Vec::new(); Victim::value_variants().len() + 1]; attacks.len()];
        let mut progress = ProgressLine::new("attacks", rounds);
        for round in 0..rounds {
            for index in rotation(attacks.len(), round) {
                let at = AttackCell { attack: attacks[index] };
                progress.step(at);
                let victims = Victim::value_variants().iter().copied().map(Some).chain([None]).enumerate();
                for (place, victim) in victims {
                    if attacks[index].is_none() && victim.is_none() {
                        continue;
                    }
                    let run = self.run(attacks[index], victim, round == 0);
                    runs[index][place].push(run.with_context(|| {
                        let beside = victim.map_or("nobody".to_owned(), |victim| victim.to_string());
                        let words = self.backend.log();
                        format!("attack '{at}', beside {beside}; the back end's last words: {words}")
                    })?);
                }
            }
            progress.advance();
        }
        Ok(runs)
    }

    /// One run. `weighs` the process before and after.
    fn run(&self, attack: Option<Attack>, victim: Option<Victim>, weighs: bool) -> Result<AttackRun> {
        let mut first = self.guest(0)?;
        let mut second = match victim {
            Some(Victim::SameGroup) => Some(self.guest(1)?),
            Some(Victim::OtherGroup) => Some(self.guest(2)?),
            Some(Victim::SameVm) | None => None,
        };
        let mut weapon = attack.map(|attack| Weapon::new(attack, &mut first, self.backend)).transpose()?;
        let vm = victim.map_or(0, |victim| victim as usize);
        let honest = match victim {
            Some(_) => Some(self.open(second.as_mut().unwrap_or(&mut first), vm)?),
            None => None,
        };
        let weighs = weighs && victim.is_none();
        let before = if weighs { own_memory(self.backend)? } else { 0 };
        let (got, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (stream, conn) =
            (honest.as_ref().map(|(_, stream)| stream), honest.as_ref().map(|(conn, _)| *conn));
        let clone = |stream: &UnixStream| stream.try_clone();
        let other = weapon.as_ref().and_then(Weapon::to_read).map(clone).transpose()?;
        let listener =
            weapon.as_ref().and_then(Weapon::to_accept).map(UnixListener::try_clone).transpose()?;
        let (ignored, over) = (AtomicU64::new(0), &over);
        let seat = || self.host_cpu.pin(self.placement);
        let (outcome, programs) = std::thread::scope(|scope| {
            let got = &got;
            let honest = stream.map(|s| scope.spawn(move || seat().and_then(|()| read(s, got, over))));
            // Programs of the attacker's connections have a thread of their own: the scheduler is
            // fair to both.
            let other = other.as_ref().map(|s| {
                let ignored = &ignored;
                scope.spawn(move || seat().and_then(|()| read(s, ignored, over)))
            });
            let taker = listener.as_ref().map(|l| scope.spawn(move || seat().and_then(|()| accept(l, over))));
            let outcome = self.drive(&mut first, second.as_mut(), weapon.as_mut(), conn, got);
            over.store(true, Ordering::Release);
            (outcome, [honest, other, taker].map(|program| program.map(ScopedJoinHandle::join)))
        });
        for program in programs.into_iter().flatten() {
            program
                .map_err(|_| anyhow!("a program of the host panicked"))?
                .context("a program of the host")?;
        }
        let mut run = outcome?;
        if weighs {
            run.grown_bytes = own_memory(self.backend)?.saturating_sub(before);
        }
        Ok(run)
    }

    /// The honest connection, from VM `vm` to a program of the host.
    fn open(&self, guest: &mut VsockGuest, vm: usize) -> Result<(ConnId, UnixStream)> {
        let listener = host::listen(&host::port_path(&self.backend.host_end(vm), PORT), SocketKind::Stream)?;
        let conn = guest.open(HOST_CID, PORT, SocketType::Stream)?;
        let (stream, _) = listener.accept().context("the honest connection")?;
        stream.set_nonblocking(true)?;
        Ok((conn, stream))
    }

    /// Drives both guests for as long as a run takes.
    fn drive(
        &self,
        first: &mut VsockGuest,
        mut second: Option<&mut VsockGuest>,
        mut weapon: Option<&mut Weapon>,
        conn: Option<ConnId>,
        got: &AtomicU64,
    ) -> Result<AttackRun> {
        let mut run = AttackRun::default();
        let clock = self.backend.clock()?;
        let (mut cpu, _) = clock.settled(SETTLE_LIMIT)?;
        let mut begin = Instant::now();
        let mut warm = false;
        let mut base = 0;
        loop {
            let elapsed = begin.elapsed();
            let begun = weapon.as_ref().is_none_or(|weapon| run.packets >= weapon.prelude());
            let begun = begun || elapsed >= PRELUDE_LIMIT;
            if !warm && begun && elapsed >= WARM_UP {
                warm = true;
                cpu = clock.now()?;
                base = got.load(Ordering::Acquire);
                run.packets = 0;
                begin = Instant::now();
            } else if warm && elapsed >= self.length {
                run.bytes = got.load(Ordering::Acquire) - base;
                // On a machine that is busy otherwise a run takes until it says something.
                let empty = match &weapon {
                    Some(weapon) => run.packets == 0 && !weapon.is_silent(),
                    None => run.bytes == 0,
                };
                if !empty {
                    run.wall = elapsed;
                    run.cpu = clock.now()? - cpu;
                    break;
                }
                if elapsed > STALL_LIMIT {
                    bail!("nothing moved for {STALL_LIMIT:?}");
                }
            }
            let mut sent = 0;
            if let Some(conn) = conn {
                let guest = second.as_deref_mut().unwrap_or(first);
                sent = guest.push(conn, WRITE_LEN, usize::MAX, TURN)?;
            }
            if let Some(weapon) = &mut weapon {
                let count = weapon.step(first)?;
                run.packets += count;
                first.turn(count > 0)?;
            } else if second.is_none() {
                first.turn(sent > 0)?;
            }
            if let Some(second) = &mut second {
                second.turn(sent > 0)?;
            }
        }
        Ok(run)
    }
}

/// Sleeps until `fd` has something, for a while at most.
fn wait(fd: impl AsFd) -> Result<()> {
    let nap = Timespec { tv_sec: 0, tv_nsec: NAP_NS };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&nap))?;
    Ok(())
}

/// Reads whatever comes, until it is over, and counts it.
fn read(mut stream: &UnixStream, got: &AtomicU64, over: &AtomicBool) -> Result<()> {
    let mut buffer = vec![0; WRITE_LEN];
    while !over.load(Ordering::Acquire) {
        match stream.read(&mut buffer) {
            Ok(0) => bail!("a connection that should go on has ended"),
            Ok(count) => {
                got.fetch_add(count as u64, Ordering::Release);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(stream)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Accepts whoever comes, until it is over, and closes each at once: the guest's reset comes too
/// late.
fn accept(listener: &UnixListener, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Acquire) {
        if listener.accept().is_err() {
            wait(listener)?;
        }
    }
    Ok(())
}

/// What a victim has in the table.
const VICTIM: [Column<Attacks>; 2] = [
    Column::median("MB/s", "megabytes_per_second", Digits::Three),
    Column::spread("/alone", "rate_ratio", Digits::Behind(2)),
];

impl AttackReport {
    /// The report as text.
    pub fn text(&self, separate_cpus: bool) -> String {
        let mut headings =
            ["attack", "a second", "back end CPU s/s", "grown KiB"].map(str::to_owned).to_vec();
        for victim in Victim::value_variants() {
            headings.extend([format!("{victim}, MB/s"), "/alone".into(), "quartiles".into()]);
        }
        let mut table = Table::new(headings.iter().map(String::as_str));
        for cell in self.alone.iter().chain(&self.rows) {
            let own = cell.facts.as_ref().map_or(["-", "-", "-"].map(str::to_owned), |facts| {
                [
                    figure(facts.per_second.median),
                    format!("{:.2}", facts.cpu_share.median),
                    (facts.grown_bytes >> 10).to_string(),
                ]
            });
            let victims = cell.lines.iter().flat_map(|line| Column::texts(&VICTIM, cell, line));
            table.row(std::iter::once(cell.at.to_string()).chain(own).chain(victims));
        }
        let seats = if separate_cpus {
            "one thread drives the attacker and the honest guest in turn on the guests' CPU (hostile programs of the host, too), \
             which the controls show; all threads of the back end share the other CPU"
        } else {
            "everything shares one CPU"
        };
        format!(
            "\nAn honest connection, guest to host, 64 KiB writes, beside an attacker: in the attacker's VM, in a VM of its group \
             (one thread of the back end), in a VM of another group; {seats}.\nMedians of runs of {} ms; a second: packets, or \
             programs of the host; that, the CPU and what the process grew by: of the attack alone, its connection, if any, unread; \
             /alone: rate divided by the rate without an attacker, round by round:\n{}",
            self.run_ms,
            table.render()
        )
    }
}
