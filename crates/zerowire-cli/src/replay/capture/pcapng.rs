//! The pcapng format: sections of blocks, each block with its type and length
//! (draft-ietf-opsawg-pcapng).
//!
//! This module finds and measures blocks, so it believes no length of the file before it has
//! checked it. The crate pcap-parser parses what is in a block from the whole block. Version 0.17
//! of the crate gets three things wrong, which this module reads itself. They are if_tsresol that
//! is a power of two, if_tsoffset of a big-endian section, and a packet that is longer than its
//! block.

use std::io::Read;
use std::ops::Range;

use pcap_parser::pcapng::{
    Block, EPB_MAGIC, IDB_MAGIC, InterfaceDescriptionBlock, OptionCode, SHB_MAGIC, SPB_MAGIC, parse_block_be,
    parse_block_le,
};
use zerowire_wire::pcapng::{BYTE_ORDER_MAGIC, FRAMING_BYTES, OLD_PACKET};

use super::Record;
use super::error::{CaptureError, CapturePosition, MAX_BLOCK_BYTES, MAX_INTERFACES, MAX_PACKET_BYTES, Whole};
use super::linktype;
use super::sliding_buffer::SlidingBuffer;

/// Byte-order magic as it lies in a little-endian section.
const LITTLE: [u8; 4] = BYTE_ORDER_MAGIC.to_le_bytes();
const BIG: [u8; 4] = BYTE_ORDER_MAGIC.to_be_bytes();

/// What a section says of an interface.
struct CaptureInterface {
    link: u32,
    /// Bytes kept of each packet; 0 for all.
    snaplen: u32,
    /// Units of a timestamp a second.
    resolution: u128,
    /// Seconds to add.
    offset: i64,
}

/// State of a pcapng file that is read.
#[derive(Default)]
pub struct PcapNg {
    big: bool,
    interfaces: Vec<CaptureInterface>,
}

/// A block that the window holds whole.
struct Here {
    kind: u32,
    length: usize,
    number: u64,
    offset: u64,
}

impl Here {
    fn place(&self) -> CapturePosition {
        match self.kind {
            EPB_MAGIC | SPB_MAGIC | OLD_PACKET => CapturePosition::Packet(self.number),
            kind => CapturePosition::Block(kind, self.number - 1),
        }
    }

    fn damaged(&self, what: impl Into<String>) -> CaptureError {
        CaptureError::Block { place: self.place(), what: what.into(), offset: self.offset }
    }
}

impl PcapNg {
    /// The next packet at or after the window's beginning; None at the end. The window is at the
    /// packet's block then.
    pub fn next<R: Read>(
        &mut self,
        window: &mut SlidingBuffer<R>,
        packets: u64,
    ) -> Result<Option<Record>, CaptureError> {
        loop {
            let Some(here) = self.find(window, packets)? else { return Ok(None) };
            match here.kind {
                EPB_MAGIC | SPB_MAGIC | OLD_PACKET => {
                    let bytes = &window.data()[..here.length];
                    return self.packet(bytes, &here).map(Some);
                }
                SHB_MAGIC => self.section(&window.data()[..here.length], &here)?,
                IDB_MAGIC => self.interface(&window.data()[..here.length], &here)?,
                // Passed over already.
                _ => continue,
            }
            window.consume(here.length);
        }
    }

    /// Finds the block that the window is at, and gets all of it unless it is of a kind that is
    /// passed over.
    fn find<R: Read>(
        &mut self,
        window: &mut SlidingBuffer<R>,
        packets: u64,
    ) -> Result<Option<Here>, CaptureError> {
        let offset = window.offset;
        let read = |cause| CaptureError::Read { packets, cause };
        let truncated = |place| CaptureError::Truncated { place, offset, whole: Whole(packets) };
        if !window.need(8).map_err(read)? {
            return if window.data().is_empty() {
                Ok(None)
            } else {
                Err(truncated(CapturePosition::Packet(packets + 1)))
            };
        }
        if window.data()[..4] == SHB_MAGIC.to_be_bytes() {
            // Its length is in the order that its own third field tells.
            if !window.need(12).map_err(read)? {
                return Err(truncated(CapturePosition::Block(SHB_MAGIC, packets)));
            }
            self.big = match window.data()[8..12].try_into().unwrap_or_default() {
                LITTLE => false,
                BIG => true,
                other => {
                    let place = CapturePosition::Block(SHB_MAGIC, packets);
                    let what = format!("byte-order magic {} in place of 1a2b3c4d", super::hex(&other));
                    return Err(CaptureError::Block { place, what, offset });
                }
            };
        }
        let (kind, length) = (self.u32_at(window.data(), 0), self.u32_at(window.data(), 4));
        let here = Here { kind, length: length as usize, number: packets + 1, offset };
        if length < FRAMING_BYTES || length % 4 != 0 {
            return Err(here.damaged(format!(
                "a block of type {kind:#010x} with length {length}: lengths are multiples of 4 and at least {FRAMING_BYTES}"
            )));
        }
        if !matches!(kind, EPB_MAGIC | SPB_MAGIC | OLD_PACKET | SHB_MAGIC | IDB_MAGIC) {
            let body = u64::from(length - 4);
            if !window.skip(body).map_err(read)? || !window.need(4).map_err(read)? {
                return Err(truncated(here.place()));
            }
            self.check_end(window.data(), &here)?;
            window.consume(4);
            return Ok(Some(here));
        }
        if length > MAX_BLOCK_BYTES {
            return Err(
                here.damaged(format!("a block of {length} bytes, {MAX_BLOCK_BYTES} at most are taken"))
            );
        }
        if !window.need(here.length).map_err(read)? {
            return Err(truncated(here.place()));
        }
        self.check_end(&window.data()[here.length - 4..], &here)?;
        Ok(Some(here))
    }

    /// The length stands at a block's end once more.
    fn check_end(&self, end: &[u8], here: &Here) -> Result<(), CaptureError> {
        match self.u32_at(end, 0) {
            n if n as usize == here.length => Ok(()),
            n => Err(here.damaged(format!("its lengths disagree, {} before and {n} after", here.length))),
        }
    }

    fn section(&mut self, bytes: &[u8], here: &Here) -> Result<(), CaptureError> {
        match self.parse(bytes, here)? {
            Block::SectionHeader(h) if h.major_version == 1 => {
                self.interfaces.clear();
                Ok(())
            }
            Block::SectionHeader(h) => Err(CaptureError::Version {
                format: "pcapng",
                major: h.major_version,
                minor: h.minor_version,
                known: "1.x",
            }),
            _ => Err(here.damaged("no section header")),
        }
    }

    fn interface(&mut self, bytes: &[u8], here: &Here) -> Result<(), CaptureError> {
        let Block::InterfaceDescription(idb) = self.parse(bytes, here)? else {
            return Err(here.damaged("no interface description"));
        };
        if self.interfaces.len() == MAX_INTERFACES {
            return Err(here.damaged(format!("more than {MAX_INTERFACES} interfaces in a section")));
        }
        let resolution = resolution(&idb).ok_or_else(|| {
            here.damaged(format!(
                "if_tsresol {:#04x}: timestamps finer than 64 bits can tell",
                idb.if_tsresol
            ))
        })?;
        let offset = self.time_offset(&idb);
        let link = idb.linktype.0 as u32;
        self.interfaces.push(CaptureInterface { link, snaplen: idb.snaplen, resolution, offset });
        Ok(())
    }

    fn time_offset(&self, idb: &InterfaceDescriptionBlock<'_>) -> i64 {
        let option = idb.options.iter().find(|o| o.code == OptionCode::IfTsoffset);
        let bytes =
            option.and_then(|o| o.as_bytes().ok()).and_then(|b| b.try_into().ok()).unwrap_or_default();
        if self.big { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) }
    }

    /// The packet in a block.
    fn packet(&self, bytes: &[u8], here: &Here) -> Result<Record, CaptureError> {
        // Fields of the two blocks that have a time stand at the same places, only the interface is
        // shorter in the old one.
        let fixed: usize = if here.kind == SPB_MAGIC { 12 } else { 28 };
        if here.length < fixed + 4 {
            return Err(here.damaged(format!("a packet block of only {} bytes", here.length)));
        }
        let room = (here.length - fixed - 4) as u32;
        let id = match here.kind {
            SPB_MAGIC => 0,
            OLD_PACKET => u32::from(self.u16_at(bytes, 8)),
            _ => self.u32_at(bytes, 8),
        };
        let interface = self.interfaces.get(id as usize).ok_or_else(|| {
            here.damaged(format!("interface {id}, where {} were described", self.interfaces.len()))
        })?;
        if interface.link != linktype::ETHERNET {
            let (number, interface, link) = (Some(here.number), Some(id), interface.link);
            return Err(CaptureError::LinkType { link, number, interface });
        }
        let (time, captured, original) = if here.kind == SPB_MAGIC {
            let original = self.u32_at(bytes, 8);
            let kept = if interface.snaplen == 0 { original } else { original.min(interface.snaplen) };
            (None, kept, original)
        } else {
            let units = u128::from(self.u32_at(bytes, 12)) << 32 | u128::from(self.u32_at(bytes, 16));
            let fraction = (units * 1_000_000_000 / interface.resolution) as i128;
            let time = fraction + i128::from(interface.offset) * 1_000_000_000;
            (Some(time), self.u32_at(bytes, 20), self.u32_at(bytes, 24))
        };
        if captured > room {
            return Err(here.damaged(format!("{captured} captured bytes in a block with room for {room}")));
        }
        if captured > MAX_PACKET_BYTES {
            let (number, offset) = (here.number, here.offset);
            return Err(CaptureError::PacketTooLong { number, captured, limit: MAX_PACKET_BYTES, offset });
        }
        let data: Range<usize> = fixed..fixed + captured as usize;
        Ok(Record { time, wire_bytes: original.max(captured), data, consume: here.length })
    }

    fn parse<'a>(&self, bytes: &'a [u8], here: &Here) -> Result<Block<'a>, CaptureError> {
        let parsed = if self.big { parse_block_be(bytes) } else { parse_block_le(bytes) };
        parsed.map(|(_, block)| block).map_err(|_| here.damaged("fields or options longer than the block"))
    }

    fn u32_at(&self, bytes: &[u8], at: usize) -> u32 {
        let bytes = bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).unwrap_or_default();
        if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    fn u16_at(&self, bytes: &[u8], at: usize) -> u16 {
        let bytes = bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).unwrap_or_default();
        if self.big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }
}

/// Units a second by if_tsresol: a power of ten, or of two where its top bit is set. None where
/// that exceeds 64 bits.
fn resolution(idb: &InterfaceDescriptionBlock<'_>) -> Option<u128> {
    let exponent = u32::from(idb.if_tsresol & 0x7f);
    let units = if idb.if_tsresol & 0x80 == 0 {
        10u128.checked_pow(exponent)?
    } else {
        1u128.checked_shl(exponent).filter(|u| *u != 0)?
    };
    (units <= u128::from(u64::MAX)).then_some(units)
}
