//! Long TCP frames, made ready to be cut into segments by the kernel or the interface.
//!
//! Captures made on a machine with segmentation offload hold TCP frames of up to 64 KiB, which no
//! wire takes. They go out with a virtio-net header that says where to cut (PACKET_VNET_HDR). The
//! frame here is the caller's own copy.

use zerowire::packet::{VnetError, VnetHeader};

use zerowire_wire::checksum::Checksum;
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
        if self.v4 {
            let header_bytes = ipv4::header_bytes(network[0]);
            let header = &mut network[..header_bytes];
            header[ipv4::CHECKSUM].fill(0);
            let mut sum = Checksum::new();
            sum.add(header);
            header[ipv4::CHECKSUM].copy_from_slice(&sum.finish().to_be_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::capture::testing::{checksum, tcp4, tcp6};
    use super::*;

    fn fields(h: VnetHeader) -> (u8, u8, [u16; 4]) {
        let b = h.to_bytes();
        let w = |i: usize| u16::from_ne_bytes([b[2 + 2 * i], b[3 + 2 * i]]);
        (b[0], b[1], [w(0), w(1), w(2), w(3)])
    }

    #[test]
    fn tcp_over_both_is_cut_to_the_mtu_or_the_mss() {
        let mut f = tcp4(5000);
        assert_eq!(fields(prepare(&mut f, None, 1500).expect("TCP")), (1, 1, [54, 1460, 34, 16]));
        // The field holds the sum of the pseudo header, not inverted.
        let pseudo = [&f[26..34], &[0, 6], &((f.len() - 34) as u16).to_be_bytes()].concat();
        assert_eq!(f[50..52], (!checksum(&pseudo)).to_be_bytes());
        let mut f = tcp6(5000);
        assert_eq!(fields(prepare(&mut f, Some(1000), 1500).expect("TCP")), (1, 4, [74, 1000, 54, 16]));
        let mut tagged = tcp4(5000);
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(fields(prepare(&mut tagged, None, 1500).expect("TCP")), (1, 1, [58, 1460, 38, 16]));
    }

    #[test]
    fn further_tags_take_room_from_the_payload() {
        for (tags, size) in [
            (&[0x88, 0xa8, 0, 7][..], 1456),
            (&[0x81, 0, 0, 7, 0x81, 0, 0, 8], 1456),
            (&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8], 1452),
        ] {
            let mut f = tcp4(5000);
            f.splice(12..12, tags.iter().copied());
            let end = 54 + tags.len() as u16;
            let header = fields(prepare(&mut f, None, 1500).expect("TCP"));
            assert_eq!(header, (1, 1, [end, size, end - 20, 16]), "{tags:x?}");
        }
    }

    #[test]
    fn a_length_that_was_left_out_is_filled_in() {
        let mut f = tcp4(5000);
        let whole = f.clone();
        f[16..18].fill(0);
        prepare(&mut f, None, 1500).expect("TCP");
        assert_eq!(f[14..34], whole[14..34]);
        let mut f = tcp6(5000);
        f[18..20].fill(0);
        prepare(&mut f, None, 1500).expect("TCP");
        assert_eq!(f[18..20], 5020u16.to_be_bytes());
    }

    proptest::proptest! {
        #[test]
        fn any_headers_end_in_a_header_or_a_reason(
            v6 in proptest::bool::ANY,
            changes in proptest::collection::vec((12usize..80, proptest::num::u8::ANY), 0..8),
            len in 14usize..3000,
        ) {
            let mut f = if v6 { tcp6(2900) } else { tcp4(2900) };
            for (at, value) in changes {
                f[at] = value;
            }
            f.truncate(len);
            if let Ok(header) = prepare(&mut f, None, 1500) {
                proptest::prop_assert!(header.check(f.len()).is_ok());
            }
        }
    }

    #[test]
    fn what_can_t_be_cut_is_named() {
        let why = |f: &mut Vec<u8>, mss| prepare(f, mss, 1500).expect_err("refused");
        let mut f = tcp4(5000);
        assert!(why(&mut f, Some(1461)).contains("--mss 1461"));
        f[23] = 17;
        assert!(why(&mut f, None).contains("protocol 17"));
        let mut f = tcp4(5000);
        f[20] = 0x20;
        assert!(why(&mut f, None).contains("fragment"));
        let mut f = tcp4(5000);
        f.push(0);
        assert!(why(&mut f, None).contains("5040 bytes and it has 5041"));
        let mut f = tcp4(5000);
        (f[14], f[16], f[17]) = (0x40, 0, 0);
        assert!(why(&mut f, None).contains("says that it has 0 bytes"));
        assert!(why(&mut vec![9; 2000], None).contains("ethertype 0909"));
        let short = tcp4(5000);
        for len in 0..54 {
            assert!(prepare(&mut short[..len].to_vec(), None, 1500).is_err(), "{len}");
        }
        assert!(prepare(&mut tcp4(5000), None, 40).expect_err("refused").contains("no room"));
    }
}
