//! Packets that another process has captured.
//!
//! It writes blocks of pcapng with one interface. Each is checked before anything of it is
//! recorded: its length, the packet's bytes, its time.

use std::io::{self, BufReader, ErrorKind, Read};
use std::sync::atomic::Ordering;

use zerowire_wire::pcapng::{
    ENHANCED_PACKET, FRAMING_BYTES, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS, SECTION_HEADER,
    enhanced_packet_bytes, parse_enhanced_packet, parse_lost,
};

use crate::options::MAX_SNAPLEN;
use crate::queue::CaptureQueue;
use crate::shared::{InterfaceState, now};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Records what comes, until the end.
pub(crate) fn record(from: impl Read, to: &InterfaceState, queue: &mut CaptureQueue) -> io::Result<()> {
    let mut from = BufReader::with_capacity(READ_BYTES, from);
    let (mut block, mut lost) = (Vec::new(), 0);
    while let Some(kind) = next(&mut from, &mut block)? {
        match kind {
            ENHANCED_PACKET => {
                let (fields, kept) = parse_enhanced_packet(&block).ok_or_else(|| wrong("a packet"))?;
                let original = fields.original.max(u32::try_from(kept.len()).unwrap_or(u32::MAX));
                queue.record_kept(fields.time.min(now()), fields.direction, original, kept);
            }
            INTERFACE_STATISTICS => {
                let told = parse_lost(&block).ok_or_else(|| wrong("statistics"))?;
                let more = told.saturating_sub(lost);
                let add = |sum: u64| Some(sum.saturating_add(more));
                let _ = to.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                lost = lost.max(told);
            }
            SECTION_HEADER | INTERFACE_DESCRIPTION => {}
            _ => return Err(wrong("a block of another kind")),
        }
        // What is there already comes in the same batch.
        if from.buffer().len() < FRAMING_BYTES as usize {
            queue.publish();
        }
    }
    Ok(())
}

/// Reads the body of the next block, and returns its kind. None at the end, also within a block:
/// the process may have been killed.
fn next(from: &mut impl Read, body: &mut Vec<u8>) -> io::Result<Option<u32>> {
    let most = enhanced_packet_bytes(MAX_SNAPLEN) as usize;
    let mut head = [0; 8];
    let mut read = |bytes: &mut [u8]| match from.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    };
    if !read(&mut head)? {
        return Ok(None);
    }
    let [a, b, c, d, e, f, g, h] = head;
    let (kind, length) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]) as usize);
    if !(FRAMING_BYTES as usize..=most).contains(&length) {
        return Err(wrong("the length of a block"));
    }
    body.resize(length - head.len(), 0);
    if !read(body)? {
        return Ok(None);
    }
    // The length once more.
    body.truncate(body.len() - 4);
    Ok(Some(kind))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{what} is wrong"))
}
