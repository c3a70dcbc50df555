//! Reads captures: pcap and pcapng, plain or in gzip, a packet at a time.
//!
//! A packet's bytes belong to the reader, and are valid until the next call for a packet. Memory is
//! bounded by the longest block ([`error::MAX_BLOCK_BYTES`]), whatever a file says of itself. The
//! reader trusts nothing in a file: it compares each length with its bound before it reads anything
//! by it.

pub mod error;
pub mod input;
mod linktype;
mod pcap;
mod pcapng;
mod sliding_buffer;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::ops::Range;

pub use error::CaptureError;

use self::error::{CapturePosition, Whole};
use self::pcap::Pcap;
use self::pcapng::PcapNg;
use self::sliding_buffer::SlidingBuffer;

/// A packet of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedPacket<'a> {
    /// Counted from 1.
    pub number: u64,
    /// Nanoseconds since 1970. None for a simple packet block of pcapng, which has no time.
    pub time: Option<i128>,
    /// Length that it had on the wire, without a frame check sequence; never less than `data`.
    pub wire_bytes: u32,
    /// What was captured of it.
    pub data: &'a [u8],
}

/// Where a packet lies in the window.
struct Record {
    time: Option<i128>,
    wire_bytes: u32,
    data: Range<usize>,
    /// Bytes up to the next one.
    consume: usize,
}

enum Format {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

/// A capture that is read.
pub struct Reader<R> {
    window: SlidingBuffer<R>,
    format: Format,
    /// Packets read so far.
    pub packets: u64,
    /// Length of the record that was given out last.
    given: usize,
    /// Length of the longest one.
    longest: usize,
}

impl<R: Read> Reader<R> {
    /// Finds out the format and reads the header.
    pub fn open(reader: R) -> Result<Self, CaptureError> {
        let mut window = SlidingBuffer::new(reader);
        let whole = window.need(4).map_err(|cause| CaptureError::Read { packets: 0, cause })?;
        if window.data().is_empty() && !window.is_cut {
            return Err(CaptureError::Empty);
        }
        let first: Option<[u8; 4]> = window.data().get(..4).filter(|_| whole).and_then(|b| b.try_into().ok());
        let Some(first) = first else {
            return Err(CaptureError::NO_HEADER);
        };
        let format = match first {
            [0x0a, 0x0d, 0x0d, 0x0a] => Format::PcapNg(PcapNg::default()),
            [0xd4, 0xc3, 0xb2, 0xa1]
            | [0xa1, 0xb2, 0xc3, 0xd4]
            | [0x4d, 0x3c, 0xb2, 0xa1]
            | [0xa1, 0xb2, 0x3c, 0x4d]
            | [0x34, 0xcd, 0xb2, 0xa1] => Format::Pcap(Pcap::open(&mut window)?),
            _ => return Err(foreign(first)),
        };
        Ok(Self { window, format, packets: 0, given: 0, longest: 0 })
    }

    /// The next packet; None at the end of the capture.
    pub fn next(&mut self) -> Result<Option<CapturedPacket<'_>>, CaptureError> {
        self.window.consume(self.given);
        self.given = 0;
        let record = match &mut self.format {
            Format::Pcap(f) => f.next(&mut self.window, self.packets)?,
            Format::PcapNg(f) => f.next(&mut self.window, self.packets)?,
        };
        let Some(record) = record else {
            if self.window.is_cut {
                let (place, whole) = (CapturePosition::Gzip(self.packets), Whole(self.packets));
                return Err(CaptureError::Truncated { place, offset: self.window.offset, whole });
            }
            return Ok(None);
        };
        self.packets += 1;
        self.given = record.consume;
        self.longest = self.longest.max(record.consume);
        Ok(Some(CapturedPacket {
            number: self.packets,
            time: record.time,
            wire_bytes: record.wire_bytes,
            data: &self.window.data()[record.data],
        }))
    }

    /// Whether as many bytes as the longest record had so far are there to be taken without
    /// reading.
    pub fn has_more(&self) -> bool {
        self.window.data().len() - self.given >= self.longest.max(1)
    }
}

/// The error for a file that begins with these bytes.
fn foreign(first: [u8; 4]) -> CaptureError {
    const CONVERT: &str = "convert it with 'editcap -F pcapng IN OUT'";
    let (what, remedy) = match first {
        [0x28, 0xb5, 0x2f, 0xfd] => ("zstd", "unpack it in front: 'zstdcat FILE | zerowire replay -i IF -'"),
        [0xfd, b'7', b'z', b'X'] => ("xz", "unpack it in front: 'xzcat FILE | zerowire replay -i IF -'"),
        [b'B', b'Z', b'h', _] => ("bzip2", "unpack it in front: 'bzcat FILE | zerowire replay -i IF -'"),
        [0x04, 0x22, 0x4d, 0x18] => ("lz4", "unpack it in front: 'lz4cat FILE | zerowire replay -i IF -'"),
        [b'P', b'K', 3, 4] => {
            ("a zip archive", "unpack it in front: 'unzip -p FILE | zerowire replay -i IF -'")
        }
        [b's', b'n', b'o', b'o'] => ("a snoop capture", CONVERT),
        [b'G', b'M', b'B', b'U'] | [b'R', b'T', b'S', b'S'] => ("a Network Monitor capture", CONVERT),
        [0x1f, 0x8b, ..] => ("gzip within gzip", "unpack it in front: 'zcat FILE | zerowire replay -i IF -'"),
        _ => return CaptureError::NotACapture { first: hex(&first) },
    };
    CaptureError::OtherFormat { what, remedy }
}

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
