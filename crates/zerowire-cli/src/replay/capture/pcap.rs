//! The classic pcap format: a header of 24 bytes, then packets with 16 bytes in front of each (24
//! in Kuznetsov's variant).

use std::io::Read;

use pcap_parser::pcap::{parse_pcap_frame, parse_pcap_frame_be, parse_pcap_frame_modified};
use pcap_parser::{PcapHeader, parse_pcap_header};

use super::Record;
use super::error::{CaptureError, CapturePosition, MAX_PACKET_BYTES, Whole};
use super::linktype;
use super::sliding_buffer::SlidingBuffer;

/// Length of the file's header.
const HEADER_BYTES: usize = 24;

/// A bit of the header's link type (draft-ietf-opsawg-pcap, "File Header"). If it is set, the four
/// bits at the top are the length of the frame check sequence, in units of 16 bits.
const FCS_PRESENT: u32 = 1 << 26;

/// State of a pcap file that is read.
pub struct Pcap {
    header: PcapHeader,
    /// Bytes in front of each packet.
    record_bytes: usize,
    /// Bytes at the end of each frame that the interface adds by itself when it is sent.
    fcs_bytes: u32,
}

impl Pcap {
    /// Reads the file's header, which the window is at.
    pub fn open<R: Read>(window: &mut SlidingBuffer<R>) -> Result<Self, CaptureError> {
        let whole = window.need(HEADER_BYTES).map_err(|cause| CaptureError::Read { packets: 0, cause })?;
        let Some(bytes) = window.data().get(..HEADER_BYTES).filter(|_| whole) else {
            return Err(CaptureError::NO_HEADER);
        };
        let header = match parse_pcap_header(bytes) {
            Ok((_, header)) => header,
            Err(_) => return Err(CaptureError::NotACapture { first: super::hex(&bytes[..4]) }),
        };
        if header.version_major != 2 {
            let (major, minor) = (header.version_major, header.version_minor);
            return Err(CaptureError::Version { format: "pcap", major, minor, known: "2.x" });
        }
        let network = header.network.0 as u32;
        let link = network & 0xffff;
        if link != linktype::ETHERNET {
            return Err(CaptureError::LinkType { link, number: None, interface: None });
        }
        let fcs_bytes = if network & FCS_PRESENT != 0 { (network >> 28) * 2 } else { 0 };
        let record_bytes = if header.is_modified_format() { 24 } else { 16 };
        window.consume(HEADER_BYTES);
        Ok(Self { header, record_bytes, fcs_bytes })
    }

    /// The packet that the window is at; None at the end.
    pub fn next<R: Read>(
        &mut self,
        window: &mut SlidingBuffer<R>,
        packets: u64,
    ) -> Result<Option<Record>, CaptureError> {
        let number = packets + 1;
        let offset = window.offset;
        let truncated =
            CaptureError::Truncated { place: CapturePosition::Packet(number), offset, whole: Whole(packets) };
        let read = |cause| CaptureError::Read { packets, cause };
        if !window.need(self.record_bytes).map_err(read)? {
            return if window.data().is_empty() { Ok(None) } else { Err(truncated) };
        }
        let field = |at: usize| {
            let bytes = window.data().get(at..at + 4).and_then(|b| b.try_into().ok()).unwrap_or_default();
            if self.header.is_bigendian() { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
        };
        // Before the packet is read: its length bounds the buffer.
        let captured = field(8);
        if captured > MAX_PACKET_BYTES {
            return Err(CaptureError::PacketTooLong { number, captured, limit: MAX_PACKET_BYTES, offset });
        }
        let length = self.record_bytes + captured as usize;
        if !window.need(length).map_err(read)? {
            return Err(truncated);
        }
        let parse = match (self.header.is_modified_format(), self.header.is_bigendian()) {
            (true, _) => parse_pcap_frame_modified,
            (false, true) => parse_pcap_frame_be,
            (false, false) => parse_pcap_frame,
        };
        let Ok((_, frame)) = parse(&window.data()[..length]) else {
            return Err(truncated);
        };
        let unit = if self.header.is_nanosecond_precision() { 1 } else { 1000 };
        let time = i128::from(frame.ts_sec) * 1_000_000_000 + i128::from(frame.ts_usec) * unit;
        let (data, wire_bytes) = self.without_fcs(frame.caplen, frame.origlen);
        Ok(Some(Record {
            time: Some(time),
            wire_bytes,
            data: self.record_bytes..self.record_bytes + data as usize,
            consume: length,
        }))
    }

    /// Captured and original length without the frame check sequence, of which the captured bytes
    /// may hold a part.
    fn without_fcs(&self, captured: u32, original: u32) -> (u32, u32) {
        // Some writers leave the original length 0, or shorter than what they stored.
        let original = original.max(captured);
        let wire = original.saturating_sub(self.fcs_bytes);
        (captured.min(wire), wire)
    }
}
