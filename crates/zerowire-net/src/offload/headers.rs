//! Where the headers lie in a frame that needs segmentation. They are Ethernet with up to two tags,
//! IPv4 with options or IPv6 with extension headers, TCP with options or UDP.

use thiserror::Error;
use zerowire_wire::ethernet::{self, IPV4, IPV6};
use zerowire_wire::ip::{IpError, TCP, UDP};
use zerowire_wire::vnet::{Fields, Gso};
use zerowire_wire::{ipv4, ipv6, tcp, udp};

use crate::ETH_HEADER_BYTES;
use crate::header::{GSO_UDP, MAX_TAGS};

/// The most that the headers of a frame take, bytes. It covers Ethernet with two tags (22) and IPv4
/// or TCP with all options (60 each). It also covers 114 bytes of IPv6 extension headers beside
/// TCP.
pub const HEADERS_BYTES: usize = 256;

/// Why a frame can't be cut. It is dropped; the text appears in the log once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeadersError {
    /// The frame, or the room for it, ends before its headers do.
    #[error("the frame's headers don't end within its first {0} bytes")]
    TooLong(usize),
    /// Another protocol than the header says.
    #[error("EtherType {ether_type:#06x} with IP protocol {protocol} does not fit segments of {kind:?}")]
    Protocol {
        /// The type behind the tags.
        ether_type: u16,
        /// The IP header's, or an extension header's that this code can't pass.
        protocol: u8,
        /// What the virtio-net header says.
        kind: Gso,
    },
    /// An IP header that contradicts itself.
    #[error("an IP header that begins with {0:#04x}")]
    Version(u8),
    /// A fragment has no transport header of its own.
    #[error("segments of a fragment")]
    Fragment,
    /// A TCP header of less than 20 bytes.
    #[error("a TCP header of {0} bytes")]
    TcpLength(usize),
    /// The checksum lies elsewhere than the transport protocol has it.
    #[error("csum_start {start} and csum_offset {offset}, but the transport header has it at {at} + {want}")]
    ChecksumPlace {
        /// `csum_start`
        start: u16,
        /// `csum_offset`
        offset: u16,
        /// Where the transport header begins, bytes.
        at: usize,
        /// Where in it the field lies.
        want: u16,
    },
}

/// Where the headers of a frame begin, bytes from its first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    pub(super) network_at: usize,
    pub(super) transport_at: usize,
    /// Bytes of all headers.
    pub payload_at: usize,
    pub(super) v6: bool,
    pub(super) tcp: bool,
}

impl Headers {
    /// Finds them in `head`: the frame's first [`HEADERS_BYTES`], or all of a shorter one. `start`
    /// and `offset` are the virtio-net header's `csum_start` and `csum_offset`.
    ///
    /// # Errors
    /// The text says what is wrong.
    pub fn find(head: &[u8], kind: Gso, start: u16, offset: u16) -> Result<Self, HeadersError> {
        let head = &head[..head.len().min(HEADERS_BYTES)];
        let short = HeadersError::TooLong(head.len());
        let (ether_type, network_at) = ethernet::payload(head, MAX_TAGS).ok_or(short)?;
        let network = head.get(network_at..).ok_or(short)?;
        let v6 = ether_type == IPV6;
        let wrong = |protocol| HeadersError::Protocol { ether_type, protocol, kind };
        let (protocol, network_len) = match ether_type {
            IPV4 => protocol_v4(network)?,
            IPV6 => protocol_v6(network)?,
            _ => return Err(wrong(0)),
        };
        let is_tcp = protocol == TCP;
        match (kind, protocol, v6) {
            (Gso::TcpV4, TCP, false) | (Gso::TcpV6, TCP, true) | (Gso::UdpL4, UDP, _) => {}
            _ => return Err(wrong(protocol)),
        }
        let transport_at = network_at + network_len;
        let transport = head.get(transport_at..).ok_or(short)?;
        let transport_len = match is_tcp {
            true => tcp::header_bytes(transport).ok_or(short)?,
            false => udp::HEADER_BYTES,
        };
        if is_tcp && transport_len < tcp::MIN_HEADER_BYTES {
            return Err(HeadersError::TcpLength(transport_len));
        }
        if transport.len() < transport_len {
            return Err(short);
        }
        let want = kind.checksum_at();
        if usize::from(start) != transport_at || offset != want {
            return Err(HeadersError::ChecksumPlace { start, offset, at: transport_at, want });
        }
        Ok(Self { network_at, transport_at, payload_at: transport_at + transport_len, v6, tcp: is_tcp })
    }
}

/// Bytes of the longest frame that a kernel or a device cuts out of `frame`, all headers counted
/// but VLAN tags not. `vnet` is a virtio-net header that [`crate::header::check`] accepted and
/// that asks for segments.
///
/// # Errors
/// `frame` does not show where its headers end, or the virtio-net header contradicts them: nothing
/// bounds the segments then.
pub fn longest_segment(vnet: &[u8; 10], frame: &[u8]) -> Result<usize, HeadersError> {
    let vnet = Fields::from_bytes(vnet);
    let gso = vnet.gso_kind();
    let kind = Gso::of(gso).unwrap_or(Gso::UdpL4);
    let headers = Headers::find(frame, kind, vnet.csum_start, vnet.csum_offset)?;
    // Fragments are cut from the transport header on, by gso_size as well; over IPv6 each has a
    // header of its own (RFC 8200 §4.5).
    let repeated = match gso {
        GSO_UDP if headers.v6 => headers.transport_at + 8,
        GSO_UDP => headers.transport_at,
        _ => headers.payload_at,
    };
    Ok(repeated - (headers.network_at - ETH_HEADER_BYTES) + usize::from(vnet.gso_size))
}

fn wrong(e: IpError) -> HeadersError {
    match e {
        IpError::Short => HeadersError::TooLong(HEADERS_BYTES),
        IpError::Version(first) => HeadersError::Version(first),
    }
}

/// The protocol in an IPv4 header, and the header's length, bytes.
fn protocol_v4(packet: &[u8]) -> Result<(u8, usize), HeadersError> {
    let header = ipv4::Header::parse(packet).map_err(wrong)?;
    if header.is_fragment {
        return Err(HeadersError::Fragment);
    }
    Ok((header.protocol, header.header_bytes))
}

/// The protocol behind an IPv6 header and its extension headers, and the length of all of them,
/// bytes. A kind that can't be passed is returned as the protocol.
fn protocol_v6(packet: &[u8]) -> Result<(u8, usize), HeadersError> {
    let header = ipv6::Header::parse(packet).map_err(wrong)?;
    header.protocol(packet).ok_or(HeadersError::TooLong(HEADERS_BYTES))
}

#[cfg(test)]
mod tests;
