//! Captures in the pcapng format (draft-ietf-opsawg-pcapng): numbers of its fields, and blocks as
//! they are written, in little-endian order with times in nanoseconds.
//!
//! ```text
//!  [ section header ][ interface ]… ( [ packet ] … [ interface ]… )… [ statistics of interface ]…
//!  a block:  type │ length │ fields │ data, filled up to 4 bytes │ options │ length
//! ```

/// Type of a section header.
pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
/// Type of an interface description.
pub const INTERFACE_DESCRIPTION: u32 = 1;
/// Type of the packet block of old files.
pub const OLD_PACKET: u32 = 2;
/// Type of an interface's statistics.
pub const INTERFACE_STATISTICS: u32 = 5;
/// Type of a packet.
pub const ENHANCED_PACKET: u32 = 6;

/// Third field of a section header, in the order of bytes of its section.
pub const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Bytes of a block without anything in it: type, length, and the length again at the end.
pub const FRAMING_BYTES: u32 = 12;

/// Link type of Ethernet frames.
pub const LINKTYPE_ETHERNET: u16 = 1;
/// Link type of vsock packets, as [`vsockmon`](crate::vsockmon) has them.
pub const LINKTYPE_VSOCK: u16 = 271;

/// shb_userappl: the program that wrote the section.
const USER_APPLICATION: u16 = 4;
/// if_name.
const IF_NAME: u16 = 2;
/// if_description.
const IF_DESCRIPTION: u16 = 3;
/// if_tsresol.
const IF_TSRESOL: u16 = 9;
/// epb_flags.
const EPB_FLAGS: u16 = 2;
/// isb_ifrecv: packets that the interface has seen.
const ISB_IFRECV: u16 = 4;
/// isb_ifdrop: those of them that were lost for lack of resources.
const ISB_IFDROP: u16 = 5;
/// isb_usrdeliv: those that are in the capture.
const ISB_USRDELIV: u16 = 8;

/// Which way a packet went, as its interface sees it: the low bits of epb_flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// To the interface.
    Inbound = 1,
    /// From the interface.
    Outbound = 2,
}

/// What is said of a packet beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFields {
    /// The number of its interface in the section.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Bytes that are kept.
    pub captured: u32,
    /// Bytes that it had.
    pub original: u32,
    /// Which way it went.
    pub direction: PacketDirection,
}

/// What is counted of an interface since the capture began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounts {
    /// Packets in the capture.
    pub captured: u64,
    /// Packets that it lacks.
    pub lost: u64,
}

/// Appends the header of a section, which this program writes.
pub fn section_header(out: &mut Vec<u8>, program: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0.
        out.extend([1, 0, 0, 0]);
        // The section's length is not known.
        out.extend(u64::MAX.to_le_bytes());
        option(out, USER_APPLICATION, program.as_bytes());
        end_options(out);
    });
}

/// Appends the description of the section's next interface. Of each packet up to `snaplen` bytes
/// are kept.
pub fn interface_description(out: &mut Vec<u8>, link: u16, snaplen: u32, name: &str, description: &str) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend(link.to_le_bytes());
        out.extend([0, 0]);
        out.extend(snaplen.to_le_bytes());
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_DESCRIPTION, description.as_bytes());
        // 10^-9 s.
        option(out, IF_TSRESOL, &[9]);
        end_options(out);
    });
}

/// Appends a packet; `data` appends its bytes, of which as many are kept as `fields` say.
pub fn enhanced_packet(out: &mut Vec<u8>, fields: &PacketFields, data: impl FnOnce(&mut Vec<u8>)) {
    block(out, ENHANCED_PACKET, |out| {
        out.extend(fields.interface.to_le_bytes());
        time(out, fields.time);
        out.extend(fields.captured.to_le_bytes());
        out.extend(fields.original.to_le_bytes());
        let end = out.len() + fields.captured as usize;
        data(out);
        out.resize(end, 0);
        fill_up(out, end);
        option(out, EPB_FLAGS, &(fields.direction as u32).to_le_bytes());
        end_options(out);
    });
}

/// Bytes of a packet's block.
pub fn enhanced_packet_bytes(captured: u32) -> u64 {
    // Five fields, the option with its flags, and the end of the options.
    u64::from(FRAMING_BYTES) + 20 + u64::from(captured).next_multiple_of(4) + 8 + 4
}

/// Appends the statistics of an interface at this time, nanoseconds since 1970.
pub fn interface_statistics(out: &mut Vec<u8>, interface: u32, at: u64, counts: InterfaceCounts) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend(interface.to_le_bytes());
        time(out, at);
        option(out, ISB_IFRECV, &counts.captured.saturating_add(counts.lost).to_le_bytes());
        option(out, ISB_IFDROP, &counts.lost.to_le_bytes());
        option(out, ISB_USRDELIV, &counts.captured.to_le_bytes());
        end_options(out);
    });
}

/// The fields and the kept bytes of a packet, of the body of a block that [`enhanced_packet`] has
/// written. None: another one has.
pub fn parse_enhanced_packet(body: &[u8]) -> Option<(PacketFields, &[u8])> {
    let (fields, rest) = body.split_first_chunk::<20>()?;
    let word = |at: usize| u32::from_le_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
    let captured = word(12);
    let data = rest.get(..captured as usize)?;
    let options = rest.get((captured as usize).next_multiple_of(4)..)?;
    let (head, flags) = options.get(..8)?.split_first_chunk::<4>()?;
    let direction = match u32::from_le_bytes(flags.try_into().ok()?) {
        1 => PacketDirection::Inbound,
        2 => PacketDirection::Outbound,
        _ => return None,
    };
    if *head != option_head(EPB_FLAGS, 4) {
        return None;
    }
    let time = u64::from(word(4)) << 32 | u64::from(word(8));
    Some((PacketFields { interface: word(0), time, captured, original: word(16), direction }, data))
}

/// How many packets an interface has lost, of the body of a block that [`interface_statistics`] has
/// written. None: another one has.
pub fn parse_lost(body: &[u8]) -> Option<u64> {
    // Behind the number, the time and isb_ifrecv there is isb_ifdrop.
    let (head, value) = body.get(12 + 12..12 + 12 + 12)?.split_first_chunk::<4>()?;
    let value = u64::from_le_bytes(value.try_into().ok()?);
    (*head == option_head(ISB_IFDROP, 8)).then_some(value)
}

/// The blocks of which all bytes are there, framing included, up to the first one that has no
/// length or a wrong one.
pub fn whole_blocks(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = bytes.get(4..)?.first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length);
        let (block, rest) = bytes.split_at_checked(length as usize).filter(|_| length >= FRAMING_BYTES)?;
        bytes = rest;
        Some(block)
    })
}

fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let length = ((out.len() - start + 4) as u32).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&length);
    out.extend(length);
}

/// A time as two words, the high one first.
fn time(out: &mut Vec<u8>, time: u64) {
    out.extend(((time >> 32) as u32).to_le_bytes());
    out.extend((time as u32).to_le_bytes());
}

/// Code and length of an option.
fn option_head(code: u16, len: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (code.to_le_bytes(), len.to_le_bytes());
    [a, b, c, d]
}

/// An option; a value that is too long for one is cut.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend(option_head(code, value.len() as u16));
    let end = out.len() + value.len();
    out.extend(value);
    fill_up(out, end);
}

fn end_options(out: &mut Vec<u8>) {
    out.extend([0; 4]);
}

/// Appends what is missing behind `end` bytes to a multiple of 4. Blocks begin at such a multiple.
fn fill_up(out: &mut Vec<u8>, end: usize) {
    out.resize(end.next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests;
