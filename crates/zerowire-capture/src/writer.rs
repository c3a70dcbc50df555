//! The thread that writes a capture.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zerowire_wire::pcapng::{
    ENHANCED_PACKET, PacketFields, enhanced_packet, enhanced_packet_bytes, interface_description,
    interface_statistics, parse_enhanced_packet, section_header, whole_blocks,
};

use crate::filter::CaptureFilter;
use crate::options::CaptureOptions;
use crate::queue::{Drain, WaitingPacket};
use crate::shared::{Arrivals, InterfaceState, Shared, now};
use crate::sink::CaptureSink;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 << 10;

/// Room for the statistics of an interface at the end of a file, bytes.
const STATISTICS_BYTES: u64 = 64;

/// A packet is held back that is this much younger than the round at most, nanoseconds. One beyond
/// that has the time of a clock that was set back since.
const YOUNGER: u64 = 100_000_000;

/// Writes a capture.
pub(crate) struct CaptureWriter {
    shared: Arc<Shared>,
    sink: CaptureSink,
    program: String,
    interfaces: Vec<Arc<InterfaceState>>,
    drains: Vec<Drain>,
    /// Interfaces that the present file describes.
    described: u32,
    /// Packets that it has.
    packets: u64,
    /// Blocks that are not written yet.
    blocks: Vec<u8>,
    /// True: who reads along hears what was lost since.
    tells_losses: bool,
    /// What was told so far.
    told: u64,
    /// Bytes that are kept of a packet.
    snaplen: u32,
    filter: Option<CaptureFilter>,
    /// The packet that the filter looks at.
    looked_at: Vec<u8>,
}

impl CaptureWriter {
    pub fn new(
        shared: Arc<Shared>,
        sink: CaptureSink,
        options: &CaptureOptions,
        program: &str,
        tells_losses: bool,
    ) -> Self {
        Self {
            shared,
            sink,
            program: program.to_owned(),
            interfaces: Vec::new(),
            drains: Vec::new(),
            described: 0,
            packets: 0,
            blocks: Vec::new(),
            tells_losses,
            told: 0,
            snaplen: options.snaplen,
            filter: options.filter.clone(),
            looked_at: Vec::new(),
        }
    }

    /// Writes how the first file begins.
    pub fn begin(&mut self) -> io::Result<()> {
        section_header(&mut self.blocks, &self.program);
        self.flush()
    }

    /// Writes until it is stopped, or can't.
    pub fn run(mut self) {
        let served = self.serve();
        self.drains.extend(self.shared.end().drains);
        self.lose();
        if let Err(e) = served {
            tracing::error!(
                "the capture to {} ends: {e}; VMs are served on, and their packets counted as lost to it",
                self.sink.target
            );
        }
    }

    /// What is not written and what waits in the rings is lost to the capture.
    fn lose(&mut self) {
        for block in whole_blocks(&self.blocks) {
            let (kind, body) = (&block[..4], &block[8..block.len() - 4]);
            let packet = parse_enhanced_packet(body).filter(|_| kind == ENHANCED_PACKET.to_le_bytes());
            let Some((fields, _)) = packet else { continue };
            let is_its = |i: &&Arc<InterfaceState>| i.number.load(Ordering::Relaxed) == fields.interface;
            if let Some(interface) = self.interfaces.iter().find(is_its) {
                interface.captured.fetch_sub(1, Ordering::Relaxed);
                interface.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.drains.iter().for_each(Drain::lose);
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            // What was published before somebody asked for the end is seen by the round behind it.
            let stops = self.shared.is_stopping();
            self.admit();
            let was_busy = self.round(if stops { u64::MAX } else { now() })?;
            self.retire();
            if stops {
                self.statistics();
                return self.flush();
            }
            if self.tells_losses {
                self.tell_losses();
            }
            self.flush()?;
            let (shared, drains) = (&self.shared, &self.drains);
            shared.rest(was_busy, || {
                shared.is_stopping() || shared.has_arrivals() || drains.iter().any(Drain::has_more)
            });
        }
    }

    /// Takes in what is new.
    fn admit(&mut self) {
        let Arrivals { interfaces, drains } = self.shared.take_arrivals();
        let known = self.interfaces.len();
        self.interfaces.extend(interfaces);
        self.describe(known);
        self.drains.extend(drains);
    }

    /// Describes the interfaces from `first` on in the present file.
    fn describe(&mut self, first: usize) {
        for interface in &self.interfaces[first..] {
            let InterfaceState { link, name, description, .. } = &**interface;
            interface_description(&mut self.blocks, *link, self.snaplen, name, description);
            interface.number.store(self.described, Ordering::Relaxed);
            self.described += 1;
        }
    }

    /// Takes what the rings have, the oldest packets first.
    ///
    /// Packets that are younger than the round are held back. A ring that was looked at early may
    /// lack older ones, such as the request to an answer that another ring has already. False: the
    /// rings had nothing.
    fn round(&mut self, begin: u64) -> io::Result<bool> {
        self.drains.iter_mut().for_each(Drain::look);
        let mut was_busy = false;
        while let Some((time, i)) = self.oldest() {
            was_busy = true;
            if time > begin && time - begin < YOUNGER {
                break;
            }
            let Some(packet) = self.drains[i].peek() else { break };
            if self.passes(i, &packet) {
                self.packet(i, &packet)?;
            }
        }
        Ok(was_busy)
    }

    /// The time of the oldest packet, and where it is.
    #[inline]
    fn oldest(&self) -> Option<(u64, usize)> {
        let times = self.drains.iter().enumerate().filter_map(|(i, drain)| Some((drain.next_time()?, i)));
        times.min()
    }

    /// Whether a packet passes the filter. One that does not is taken from its ring here.
    fn passes(&mut self, i: usize, packet: &WaitingPacket) -> bool {
        let Some(filter) = &self.filter else { return true };
        self.looked_at.clear();
        self.drains[i].take(packet, &mut self.looked_at);
        filter.passes(&self.looked_at, packet.len, packet.direction)
    }

    fn packet(&mut self, i: usize, packet: &WaitingPacket) -> io::Result<()> {
        let kept = packet.kept.min(self.snaplen);
        let statistics = STATISTICS_BYTES * u64::from(self.described);
        let more = self.blocks.len() as u64 + enhanced_packet_bytes(kept) + statistics;
        if self.packets > 0 && self.sink.is_full(more) {
            self.next_file()?;
        }
        let Drain { interface, .. } = &self.drains[i];
        interface.captured.fetch_add(1, Ordering::Relaxed);
        let fields = PacketFields {
            interface: interface.number.load(Ordering::Relaxed),
            time: packet.time,
            captured: kept,
            original: packet.len,
            direction: packet.direction,
        };
        let (drain, taken) = (&mut self.drains[i], &self.looked_at);
        enhanced_packet(&mut self.blocks, &fields, |out| match self.filter {
            None => drain.take(packet, out),
            Some(_) => out.extend_from_slice(&taken[..kept as usize]),
        });
        self.packets += 1;
        if self.blocks.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Ends the present file and begins with another one.
    fn next_file(&mut self) -> io::Result<()> {
        self.statistics();
        self.flush()?;
        self.sink.rotate()?;
        (self.described, self.packets) = (0, 0);
        section_header(&mut self.blocks, &self.program);
        self.describe(0);
        Ok(())
    }

    /// Lets go of rings that are over, and of interfaces that nobody else has.
    fn retire(&mut self) {
        self.drains.retain(|drain| !drain.is_over());
        // A ring whose packets are not all taken has it as well.
        for gone in self.interfaces.extract_if(.., |interface| Arc::strong_count(interface) == 1) {
            count(&mut self.blocks, &gone);
        }
    }

    /// Appends what was counted of all interfaces.
    fn statistics(&mut self) {
        for interface in &self.interfaces {
            count(&mut self.blocks, interface);
        }
    }

    /// Appends what was counted, if more was lost since the last time.
    fn tell_losses(&mut self) {
        let lost = self.interfaces.iter().fold(0_u64, |sum, i| sum.saturating_add(i.counts().lost));
        if lost > self.told {
            self.told = lost;
            self.statistics();
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.write(&mut self.blocks)
    }
}

/// Appends what was counted of an interface.
fn count(blocks: &mut Vec<u8>, interface: &InterfaceState) {
    let number = interface.number.load(Ordering::Relaxed);
    interface_statistics(blocks, number, now(), interface.counts());
}
