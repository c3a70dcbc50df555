//! Shared by the tests, beside what the tests of all devices share.

pub mod neighbour;
pub mod pair;
pub mod pattern;
pub mod toggle;
pub mod wire;

use std::path::Path;

use zerowire_guest::net::header::{FLAG_NEEDS_CSUM, GSO_TCPV4};
use zerowire_guest::net::{TxQueue, VirtioNetHdr};
use zerowire_metadata::TokenPolicy;
use zerowire_net::MetadataSource;

pub use zerowire_rig::*;

/// `vm` with a metadata service, whose file is `metadata.json` in `dir`.
pub fn with_metadata(vm: Vm, dir: &Path) -> Vm {
    let file = dir.join("metadata.json");
    std::fs::write(&file, r#"{"latest":{"a":"b"}}"#).expect("a metadata file");
    Vm { metadata: Some(MetadataSource { file, tokens: TokenPolicy::Required }), ..vm }
}

/// A header that has [`frames::tcp_frame`] segmented.
pub fn tso() -> VirtioNetHdr {
    VirtioNetHdr {
        flags: FLAG_NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        hdr_len: frames::TCP_HEADERS as u16,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
        num_buffers: 0,
    }
}

/// `header` as a peer writes it in front of a frame.
pub fn peer_header(header: VirtioNetHdr) -> [u8; PEER_HEADER] {
    header.encode()[..PEER_HEADER].try_into().expect("ten bytes")
}

/// Sends the frames one by one, as fast as buffers are given back, and waits until all are.
pub fn send_each(tx: &mut TxQueue, frames: impl IntoIterator<Item = Vec<u8>>) {
    for frame in frames {
        while !tx.send(&VirtioNetHdr::default(), &frame).expect("a frame that fits") {
            tx.publish().expect("published");
            assert!(tx.wait(1, PATIENCE).expect("a sound ring"), "a buffer given back");
            tx.reap().expect("a sound ring");
        }
        tx.publish().expect("published");
    }
    assert!(tx.drain(PATIENCE).expect("a sound ring"), "all frames given back");
}
