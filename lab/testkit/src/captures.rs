//! Captures in pcapng, read by a parser that has no code of this project's.

use std::path::Path;

use pcap_parser::pcapng::{Block, OptionCode, PcapNGOption, parse_block_le};

/// What a file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureFile {
    /// Who wrote it.
    pub program: String,
    /// Its interfaces, in the order of their numbers.
    pub interfaces: Vec<DescribedInterface>,
    /// Its packets.
    pub packets: Vec<CapturedPacket>,
    /// What was counted of an interface: its number, packets seen, packets lost.
    pub counts: Vec<(u32, u64, u64)>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedInterface {
    /// Link type.
    pub link: u16,
    /// Bytes kept of each packet.
    pub snaplen: u32,
    /// Its name.
    pub name: String,
    /// What is said of it.
    pub description: String,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    /// The number of its interface.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Bytes that it had.
    pub len: u32,
    /// Bytes that were kept.
    pub bytes: Vec<u8>,
    /// 1 for one to the interface, 2 for one from it.
    pub direction: u32,
}

/// Reads a file, of which each block must be whole and right.
pub fn read_file(path: &Path) -> CaptureFile {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (file, rest) = read(&bytes);
    assert_eq!(rest, 0, "{}: bytes behind the last block", path.display());
    file
}

/// Reads what begins with these bytes, up to the last whole block. Returns how many are left.
pub fn read(bytes: &[u8]) -> (CaptureFile, usize) {
    let (mut file, mut rest) = (CaptureFile::default(), bytes);
    while let Ok((behind, block)) = parse_block_le(rest) {
        let option = |options: &[PcapNGOption<'_>], code| {
            let option = options.iter().find(|o| o.code == OptionCode(code));
            option.map(|o| o.as_bytes().expect("an option that is whole").to_vec()).unwrap_or_default()
        };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let number = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        match block {
            Block::SectionHeader(header) => {
                assert!(file.interfaces.is_empty(), "one section");
                file.program = text(option(&header.options, 4));
            }
            Block::InterfaceDescription(interface) => {
                assert_eq!(interface.if_tsresol, 9, "nanoseconds");
                file.interfaces.push(DescribedInterface {
                    link: u16::try_from(interface.linktype.0).expect("a link type"),
                    snaplen: interface.snaplen,
                    name: text(option(&interface.options, 2)),
                    description: text(option(&interface.options, 3)),
                });
            }
            Block::EnhancedPacket(packet) => {
                assert!((packet.if_id as usize) < file.interfaces.len(), "of a described interface");
                file.packets.push(CapturedPacket {
                    interface: packet.if_id,
                    time: u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low),
                    len: packet.origlen,
                    bytes: packet.data[..packet.caplen as usize].to_vec(),
                    direction: u32::from_le_bytes(
                        option(&packet.options, 2).try_into().expect("four bytes of flags"),
                    ),
                });
            }
            Block::InterfaceStatistics(counts) => {
                let [seen, lost] = [4, 5].map(|code| number(option(&counts.options, code)));
                file.counts.push((counts.if_id, seen, lost));
            }
            other => panic!("a block that zerowire does not write: {other:?}"),
        }
        rest = behind;
    }
    (file, rest.len())
}
