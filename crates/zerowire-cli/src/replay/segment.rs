//! Long TCP frames, made ready to be cut into segments by the kernel or the interface.
//!
//! Captures made on a machine with segmentation offload hold TCP frames of up to 64 KiB, which no
//! wire takes. They go out with a virtio-net header that says where to cut (PACKET_VNET_HDR). The
//! frame here is the caller's own copy.

use zerowire::packet::{VnetError, VnetHeader};

use zerowire_wire::ethernet::{self, HEADER_BYTES as ETHERNET_BYTES, TAG_BYTES};
use zerowire_wire::ip::{IpError, TCP};
use zerowire_wire::{ipv4, ipv6, tcp};

/// Prepares `frame` for segments that fit `mtu`, with `mss` bytes of payload each if that is given.
/// On an error (the reason, in words) the frame is as before, but for length fields.
pub fn prepare(frame: &mut [u8], mss: Option<u16>, mtu: usize) -> Result<VnetHeader, String> {
    let found = Headers::find(frame)?;
    found.set_length(frame)?;
    let headers = found.payload_at - found.network_at;
    // By one tag a segment may exceed the MTU; further ones, and those of 802.1ad, take room from
    // the payload.
    let tags = found.network_at - ETHERNET_BYTES - tag_bytes(frame);
    let room = mtu.checked_sub(headers + tags).filter(|n| *n > 0);
    let room =
        room.ok_or_else(|| format!("its headers of {headers} bytes leave no room in an MTU of {mtu}"))?;
    let size = match mss {
        Some(mss) if usize::from(mss) > room => {
            return Err(format!(
                "--mss {mss} and {} bytes of headers exceed the MTU of {mtu}",
                headers + tags
            ));
        }
        Some(mss) => mss,
        None => room.min(usize::from(u16::MAX)) as u16,
    };
    VnetHeader::prepare(frame, Some(size)).map_err(|e| e.to_string())
}

/// Bytes of a frame's VLAN tags by which it may exceed the MTU: of one tag.
pub fn tag_bytes(frame: &[u8]) -> usize {
    if ethernet::first_type(frame) == Some(ethernet::TAG) { TAG_BYTES } else { 0 }
}

struct Headers {
    network_at: usize,
    payload_at: usize,
    v4: bool,
}

impl Headers {
    fn find(frame: &[u8]) -> Result<Self, String> {
        let cut_off = || "its headers are cut off".to_owned();
        let (ether_type, network_at) = ethernet::payload(frame, usize::MAX).ok_or_else(cut_off)?;
        let network = &frame[network_at..];
        let (v4, protocol, network_bytes) = match ether_type {
            ethernet::IPV4 => {
                let header = ipv4::Header::parse(network).map_err(|e| match e {
                    IpError::Short => cut_off(),
                    IpError::Version(first) if ipv4::header_bytes(first) < ipv4::MIN_HEADER_BYTES => {
                        format!("its IP header says that it has {} bytes", ipv4::header_bytes(first))
                    }
                    IpError::Version(_) => VnetError::NotTransport.to_string(),
                })?;
                if header.is_fragment {
                    return Err("it is an IP fragment, which can't be segmented".to_owned());
                }
                (true, header.protocol, header.header_bytes)
            }
            ethernet::IPV6 => {
                let next = network.get(ipv6::NEXT_AT).copied().ok_or_else(cut_off)?;
                (false, next, ipv6::HEADER_BYTES)
            }
            other => return Err(format!("it is neither IPv4 nor IPv6 (ethertype {other:04x})")),
        };
        if protocol != TCP {
            return Err(format!("it is not TCP (IP protocol {protocol}), and only TCP is segmented"));
        }
        let transport_bytes = network.get(network_bytes..).and_then(tcp::header_bytes).ok_or_else(cut_off)?;
        let payload_at = network_at + network_bytes + transport_bytes;
        if payload_at > frame.len() {
            return Err(cut_off());
        }
        Ok(Self { network_at, payload_at, v4 })
    }

    /// The IP header must speak of the whole frame: what lies behind would become payload. Captures
    /// of very long frames leave the field 0, which is filled in.
    fn set_length(&self, frame: &mut [u8]) -> Result<(), String> {
        let packet = frame.len() - self.network_at;
        let (field, is) = match self.v4 {
            true => (ipv4::TOTAL_LEN, packet),
            false => (ipv6::PAYLOAD_LEN, packet - ipv6::HEADER_BYTES),
        };
        let network = &mut frame[self.network_at..];
        let says = usize::from(u16::from_be_bytes([network[field.start], network[field.start + 1]]));
        if says == is {
            return Ok(());
        }
        let Some(is) = u16::try_from(is).ok().filter(|_| says == 0) else {
            return Err(format!("its IP header speaks of {says} bytes and it has {is}"));
        };
        network[field].copy_from_slice(&is.to_be_bytes());
        if let Ok(header) = ipv4::Header::parse(network) {
            ipv4::complete_checksum(&mut network[..header.header_bytes]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
