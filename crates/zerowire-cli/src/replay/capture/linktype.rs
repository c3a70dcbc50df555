//! Link types (the LINKTYPE numbers of capture files), and why all but Ethernet are refused.

/// LINKTYPE_ETHERNET, the one that can be sent.
pub const ETHERNET: u32 = zerowire_wire::pcapng::LINKTYPE_ETHERNET as u32;

/// What a link type is called, and what to do about it.
struct Known {
    link: u32,
    name: &'static str,
    /// Whether tcprewrite can put Ethernet headers in front.
    rewritable: bool,
}

const KNOWN: [Known; 18] = [
    known(0, "NULL (BSD loopback)", true),
    known(9, "PPP", false),
    known(10, "FDDI", false),
    known(50, "PPP_HDLC", false),
    known(101, "RAW (IP without a link header)", true),
    known(104, "C_HDLC (Cisco HDLC)", true),
    known(105, "IEEE802_11 (wireless)", true),
    known(108, "LOOP (OpenBSD loopback)", true),
    known(113, "LINUX_SLL (cooked, of the interface 'any')", true),
    known(127, "IEEE802_11_RADIOTAP (wireless with a radio header)", false),
    known(189, "USB_LINUX", false),
    known(220, "USB_LINUX_MMAPPED", false),
    known(228, "IPV4 (without a link header)", true),
    known(229, "IPV6 (without a link header)", true),
    known(239, "NFLOG", false),
    known(249, "USBPCAP", false),
    known(253, "NETLINK", false),
    known(276, "LINUX_SLL2 (cooked, of the interface 'any')", false),
];

const fn known(link: u32, name: &'static str, rewritable: bool) -> Known {
    Known { link, name, rewritable }
}

/// The message for a link type that can't be sent.
pub fn refusal(link: u32, number: Option<u64>, interface: Option<u32>) -> String {
    let entry = KNOWN.iter().find(|k| k.link == link);
    let name = entry.map_or("of a kind unknown here", |k| k.name);
    let what = match (number, interface) {
        (Some(n), Some(i)) => format!("packet {n} is from the capture's interface {i}, whose frames are"),
        _ => "the frames of this capture are".to_owned(),
    };
    let remedy = match entry {
        Some(k) if k.rewritable => {
            "put Ethernet headers in front: 'tcprewrite --dlt=enet --enet-dmac=DST --enet-smac=SRC --infile=IN \
             --outfile=OUT', or capture on one interface instead of 'any'"
        }
        Some(k) if k.link == 276 => {
            "capture on one interface instead of 'any', or with 'tcpdump -y LINUX_SLL', which tcprewrite can turn into \
             Ethernet"
        }
        _ => "only Ethernet frames can be sent on an Ethernet interface",
    };
    let others = if interface.is_some() {
        "; 'tshark -r IN -Y \"frame.interface_id == N\" -w OUT' keeps one"
    } else {
        ""
    };
    format!("{what} of link type {link}, {name}, not Ethernet (1): {remedy}{others}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_types_are_named_with_number_and_remedy() {
        let raw = refusal(101, None, None);
        for word in ["101", "RAW", "tcprewrite --dlt=enet"] {
            assert!(raw.contains(word), "no '{word}' in {raw}");
        }
        let sll2 = refusal(276, Some(7), Some(2));
        for word in ["packet 7", "interface 2", "276", "LINUX_SLL2", "instead of 'any'", "frame.interface_id"]
        {
            assert!(sll2.contains(word), "no '{word}' in {sll2}");
        }
        let unknown = refusal(65_000, None, None);
        assert!(unknown.contains("65000") && unknown.contains("unknown"), "{unknown}");
    }
}
