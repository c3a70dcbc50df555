//! The floor: the same bytes through a pair of unix sockets, in the same write lengths; of
//! SOCK_SEQPACKET each write is a message.
//!
//! One thread writes, one reads, both wait in their calls. The thread in the back end's place walks
//! the case's working set on the CPU where back ends run. From guest to host that is the writer,
//! from host to guest the reader. The other thread uses a buffer of the write's length on the CPU
//! of the host's program.
//!
//! The copying variant puts every byte through a private buffer. The bounded one has a send buffer
//! of as many bytes as the case has credit, as the kernel counts them. Like guest and device, its
//! two threads wait for each other where a write takes all of it.

use std::os::unix::net::UnixStream;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use rustix::net::sockopt::set_socket_send_buffer_size;

use super::case::VsockCase;
use super::compare::{VsockBench, VsockSample};
use super::host::{self, HostCpu, Walk};
use crate::area::Area;
use crate::case::Direction;
use crate::cpu::Placement;
use crate::experiment::{Turn, Variant};

/// A pair of unix sockets.
#[derive(Debug)]
pub struct SocketFloor {
    copies: bool,
    bounded: bool,
    host_cpu: HostCpu,
    placement: Placement,
    ready: Option<ReadySocket>,
}

#[derive(Debug)]
struct ReadySocket {
    case: VsockCase,
    /// The working set of the thread in the back end's place.
    area: Area,
    walk: Walk,
    /// The other thread's buffer.
    buffer: Vec<u8>,
    writer: UnixStream,
    reader: UnixStream,
}

impl SocketFloor {
    /// The floor itself.
    pub fn new(host_cpu: HostCpu, placement: Placement) -> Self {
        Self { copies: false, bounded: false, host_cpu, placement, ready: None }
    }

    /// The negative control: every byte is copied once more.
    pub fn copying(host_cpu: HostCpu, placement: Placement) -> Self {
        Self { copies: true, bounded: false, host_cpu, placement, ready: None }
    }

    /// The floor with no more room between writer and reader than a connection has credit.
    pub fn bounded(host_cpu: HostCpu, placement: Placement) -> Self {
        Self { copies: false, bounded: true, host_cpu, placement, ready: None }
    }
}

impl Variant<VsockBench> for SocketFloor {
    fn name(&self) -> &str {
        match (self.copies, self.bounded) {
            (true, _) => "copy + floor",
            (false, true) => "floor, room as credit",
            (false, false) => "floor",
        }
    }

    fn prepare(&mut self, case: &VsockCase) -> Result<()> {
        // The old memory goes first: two cold working sets at a time would only take memory.
        self.ready = None;
        let mut area = Area::new(case.set_bytes())?;
        for (at, byte) in area.bytes_mut().iter_mut().enumerate() {
            *byte = (at ^ at >> 8 ^ at >> 16) as u8;
        }
        let (writer, reader) = host::pair(case.socket, case.write_len)?;
        if self.bounded {
            // The kernel doubles the size that it gets (net/core/sock.c), and what it needs itself
            // counts, too.
            set_socket_send_buffer_size(&writer, case.credit as usize / 2)?;
            // A message fits in any case.
            host::make_room(&writer, case.socket, case.write_len)?;
        }
        let buffer = (0..case.write_len).map(|at| (at ^ at >> 8) as u8).collect();
        self.ready =
            Some(ReadySocket { case: *case, area, walk: Walk::of(case.socket), buffer, writer, reader });
        Ok(())
    }

    fn run(&mut self, case: &VsockCase, bytes: usize, turn: Turn) -> Result<VsockSample> {
        let check = turn == Turn::WarmUp;
        let Some(ready) = self.ready.as_mut().filter(|ready| ready.case == *case) else {
            bail!("the floor was not prepared for {case}");
        };
        let (copies, host_cpu, placement) = (self.copies, self.host_cpu, &self.placement);
        let ReadySocket { area, walk, buffer, writer, reader, .. } = ready;
        let (writer, reader) = (&*writer, &*reader);
        let lens = (case.write_len, bytes);
        let begin = Instant::now();
        let measured = || {
            placement.pin_worker()?;
            match case.direction {
                Direction::Transmit => host::source(writer, area.bytes(), walk, lens, copies, check),
                Direction::Receive => host::sink(reader, area.bytes_mut(), walk, lens, copies, check),
            }
        };
        let other = || {
            host_cpu.pin(placement)?;
            let walk = &mut Walk::of(case.socket);
            match case.direction {
                Direction::Transmit => host::sink(reader, buffer, walk, lens, false, check),
                Direction::Receive => host::source(writer, buffer, walk, lens, false, check),
            }
        };
        let (measured, other) = std::thread::scope(|scope| {
            let (measured, other) = (scope.spawn(measured), scope.spawn(other));
            (measured.join(), other.join())
        });
        let panicked = |_| anyhow!("a thread of the floor panicked");
        let (measured, other) = (measured.map_err(panicked)??, other.map_err(panicked)??);
        if measured.sum != other.sum {
            bail!("{bytes} bytes: the reader's sum differs from the writer's");
        }
        let end = measured.end.max(other.end);
        Ok(VsockSample::new(measured.cpu, other.cpu, end - begin, bytes).with_sleeps(measured.sleeps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::WorkingSet;
    use crate::vsock::case::SocketKind;

    #[test]
    fn bytes_arrive_both_ways_with_and_without_the_copy() {
        let placement = Placement::detect().unwrap();
        let sockets = [SocketKind::Stream, SocketKind::Seqpacket];
        for (direction, socket) in Direction::ALL.iter().flat_map(|way| sockets.map(|socket| (*way, socket)))
        {
            for mut floor in [
                SocketFloor::new(HostCpu::Guest, placement.clone()),
                SocketFloor::copying(HostCpu::Any, placement.clone()),
                SocketFloor::bounded(HostCpu::Guest, placement.clone()),
            ] {
                let (write_len, credit, working_set) = (5000, 65_536, WorkingSet::Hot);
                let case = VsockCase { direction, write_len, credit, working_set, socket };
                assert!(floor.run(&case, 5000, Turn::Round(0)).is_err());
                floor.prepare(&case).unwrap();
                let sample = floor.run(&case, 1_000_000, Turn::WarmUp).unwrap();
                assert_eq!(sample.bytes, 1_000_000);
                assert!(sample.cpu_ns > 0 && sample.host_cpu_ns > 0);
                floor.run(&case, 500_000, Turn::Round(0)).unwrap();
            }
        }
    }
}
