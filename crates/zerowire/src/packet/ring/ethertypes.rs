//! What the frames that wait to be handed over have in common.
//!
//! With an address in the call the kernel takes the protocol of all frames from there. It need not
//! find it in each (`packet_parse_headers`, net/packet/af_packet.c), which saves some 2 % of a
//! short frame. So the address must be true of all.

/// EtherTypes of the frames that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EtherTypes {
    /// There are none.
    #[default]
    None,
    /// All have this one.
    All(u16),
    /// There are several.
    Mixed,
}

impl EtherTypes {
    /// One more frame waits.
    #[inline]
    pub(super) fn add(&mut self, ethertype: u16) {
        *self = match *self {
            Self::None => Self::All(ethertype),
            Self::All(all) if all == ethertype => return,
            _ => Self::Mixed,
        };
    }

    /// The one that all have.
    pub(super) fn all(self) -> Option<u16> {
        match self {
            Self::All(ethertype) => Some(ethertype),
            Self::None | Self::Mixed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use zerowire_wire::ethernet;

    use super::*;

    #[test]
    fn one_that_differs_makes_them_mixed_for_good() {
        let mut types = EtherTypes::default();
        assert_eq!(types.all(), None);
        types.add(ethernet::IPV4);
        types.add(ethernet::IPV4);
        assert_eq!(types.all(), Some(ethernet::IPV4));
        types.add(ethernet::ARP);
        assert_eq!(types.all(), None);
        types.add(ethernet::IPV4);
        assert_eq!(types, EtherTypes::Mixed);
    }
}
