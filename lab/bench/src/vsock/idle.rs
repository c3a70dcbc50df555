//! What idle connections cost: memory, CPU; and the time until a back end listens.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use zerowire_guest::vsock::{HOST_CID, SocketType};

use super::case::CREDIT;
use super::device::PORT;
use super::guest::{Setup, VsockGuest};
use super::host;
use crate::backend::BackendProcess;
use crate::cpu::Placement;
use crate::idle::{allow_descriptors, own_memory};
use crate::stats::Summary;
use crate::table::{Table, bytes};

/// Descriptors of this process beside one a connection.
const OTHER_DESCRIPTORS: u64 = 128;

/// The figures of idleness.
#[derive(Debug, Clone, Serialize)]
pub struct IdleReport {
    /// From the start of the process until its socket accepts connections, in milliseconds.
    pub start_ms: Summary,
    /// Proportional memory of the process, without guest memory, with a connected guest and no
    /// connection.
    pub no_connection_bytes: u64,
    /// With connections.
    pub rows: Vec<IdleRow>,
    /// How long the process with the most connections was watched.
    pub watched_ms: u64,
    /// The CPU time that it used meanwhile, in nanoseconds.
    pub cpu_ns: u64,
}

/// Memory with a number of connections.
#[derive(Debug, Clone, Serialize)]
pub struct IdleRow {
    /// Connections, all open and without traffic.
    pub connections: usize,
    /// Proportional memory of the process, without guest memory.
    pub bytes: u64,
    /// What each one takes beyond the process without connections.
    pub per_connection_bytes: u64,
}

/// Starts the back end `starts` times; the last one gets `counts` connections from guest to host,
/// and is left alone.
pub fn measure(
    program: &Path,
    counts: &[usize],
    starts: usize,
    quick: bool,
    placement: &Placement,
) -> Result<IdleReport> {
    let mut counts = counts.to_vec();
    counts.sort_unstable();
    allow_descriptors(counts.last().copied().unwrap_or(0) as u64 + OTHER_DESCRIPTORS)?;
    let mut times = Vec::new();
    for _ in 1..starts {
        times.push(BackendProcess::start_vsock(program, &[], &[""], placement)?.start_time());
    }
    let backend = BackendProcess::start_vsock(program, &[], &[""], placement)?;
    times.push(backend.start_time());
    let start_ms = Summary::of(times.iter().map(|time| time.as_secs_f64() * 1000.0)).context("no start")?;

    let path = host::port_path(&backend.host_end(0), PORT);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("can't listen at {}", path.display()))?;
    let setup = Setup { sleeps: true, ..Setup::default() };
    let mut guest = VsockGuest::connect(&backend.socket(0), &setup)?;
    let no_connection_bytes = own_memory(&backend)?;
    let mut streams: Vec<UnixStream> = Vec::new();
    let mut rows = Vec::new();
    for count in counts {
        while streams.len() < count {
            let open = guest.open(HOST_CID, PORT, SocketType::Stream);
            open.with_context(|| {
                format!("connection {}; the back end's last words: {}", streams.len() + 1, backend.log())
            })?;
            streams.push(listener.accept()?.0);
        }
        let bytes = own_memory(&backend)?;
        let per_connection_bytes = bytes.saturating_sub(no_connection_bytes) / count as u64;
        rows.push(IdleRow { connections: count, bytes, per_connection_bytes });
    }
    let watch = Duration::from_secs(if quick { 1 } else { 3 });
    let cpu = backend.idle_cpu(watch)?;
    Ok(IdleReport {
        start_ms,
        no_connection_bytes,
        rows,
        watched_ms: watch.as_millis() as u64,
        cpu_ns: cpu.as_nanos() as u64,
    })
}

impl IdleReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let mib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 20));
        let mut table = Table::new(["idle connections", "MiB", "B a connection"]);
        table.row(["0".into(), mib(self.no_connection_bytes), "-".into()]);
        for row in &self.rows {
            table.row([row.connections.to_string(), mib(row.bytes), row.per_connection_bytes.to_string()]);
        }
        let most = self.rows.last().map_or(0, |row| row.connections);
        format!(
            "\nIdle: listens {:.1} ms after its start (quartiles {:.1}..{:.1}, max {:.1}); {} us of CPU in {} ms with {most} \
             idle connections.\nMemory of the back end's process, without guest memory and what the kernel keeps for \
             sockets (credit {}):\n{}",
            self.start_ms.median,
            self.start_ms.q1,
            self.start_ms.q3,
            self.start_ms.max,
            self.cpu_ns / 1000,
            self.watched_ms,
            bytes(CREDIT as usize),
            table.render()
        )
    }
}
