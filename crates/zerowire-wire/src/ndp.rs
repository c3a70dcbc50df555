//! Neighbour discovery for IPv6 (RFC 4861 §4): ICMPv6 messages with options.
//!
//! ```text
//! 0 type | 1 code | 2 checksum | 4 flags | 8 target (of neighbour messages) | 24 options
//! option:  0 kind | 1 length in units of 8 bytes | 2 body
//! ```

use std::ops::Range;

/// Type: a host asks for routers.
pub const ROUTER_SOLICITATION: u8 = 133;
/// Type: a router names itself, and what hosts shall do.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// Type: a host asks for a neighbour's link-layer address.
pub const NEIGHBOUR_SOLICITATION: u8 = 135;
/// Type: a host names its link-layer address.
pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// Type: a router names a better first hop.
pub const REDIRECT: u8 = 137;

/// The address that a neighbour message is about.
const TARGET: Range<usize> = 8..24;

/// Options: the link-layer address of the sender, and that of the target.
const LINK_LAYER: [u8; 2] = [1, 2];

/// Whether a message of this ICMPv6 type is one of neighbour discovery.
#[inline]
pub const fn is_of(kind: u8) -> bool {
    matches!(kind, ROUTER_SOLICITATION..=REDIRECT)
}

/// The address that a neighbour message is about; None where the message ends before.
#[inline]
pub fn target(message: &[u8]) -> Option<[u8; 16]> {
    message.get(TARGET)?.try_into().ok()
}

/// The options of a message; None where the message is of a type that is none of the five, or ends
/// before them.
#[inline]
pub fn options(message: &[u8]) -> Option<NdpOptions<'_>> {
    let at = match *message.first()? {
        ROUTER_SOLICITATION => 8,
        ROUTER_ADVERTISEMENT => 16,
        NEIGHBOUR_SOLICITATION | NEIGHBOUR_ADVERTISEMENT => TARGET.end,
        REDIRECT => 40,
        _ => return None,
    };
    Some(NdpOptions(message.get(at..)?))
}

/// An option of no bytes, or one that ends behind the message: receivers drop the whole message
/// (RFC 4861 §4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadNdpOption;

/// An option of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NdpOption<'a> {
    /// What it is.
    pub kind: u8,
    /// What it says, with padding.
    pub body: &'a [u8],
}

impl<'a> NdpOption<'a> {
    /// The link-layer address of the sender or the target, if that is what the option says.
    #[inline]
    pub fn link_layer(&self) -> Option<&'a [u8]> {
        LINK_LAYER.contains(&self.kind).then_some(self.body)
    }
}

/// The options of a message, one after the other. The first that is wrong is the last one.
#[derive(Clone, Copy, Debug)]
pub struct NdpOptions<'a>(&'a [u8]);

impl<'a> Iterator for NdpOptions<'a> {
    type Item = Result<NdpOption<'a>, BadNdpOption>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let kind = *self.0.first()?;
        let len = self.0.get(1).map_or(0, |units| usize::from(*units) * 8);
        match self.0.split_at_checked(len) {
            Some((option, rest)) if len > 0 => {
                self.0 = rest;
                Some(Ok(NdpOption { kind, body: &option[2..] }))
            }
            _ => {
                self.0 = &[];
                Some(Err(BadNdpOption))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertisement(options: &[u8]) -> Vec<u8> {
        let mut message = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0];
        message.extend([0xfd; 16]);
        message.extend(options);
        message
    }

    #[test]
    fn targets_and_options_are_read() {
        let message = advertisement(&[14, 1, 0, 0, 0, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(target(&message), Some([0xfd; 16]));
        assert_eq!(target(&message[..23]), None);
        let read: Vec<_> = options(&message).expect("options").collect();
        let (nonce, own) = (read[0].expect("a nonce"), read[1].expect("an address"));
        assert_eq!((nonce.kind, nonce.link_layer()), (14, None));
        assert_eq!((own.kind, own.link_layer()), (2, Some([2, 3, 4, 5, 6, 7].as_slice())));
        assert_eq!(read.len(), 2);
    }

    #[test]
    fn wrong_options_end_the_list() {
        for wrong in [&[1u8, 0, 0, 0, 0, 0, 0, 0, 2][..], &[1, 2, 0, 0, 0, 0, 0, 0], &[1], &[1, 1, 0]] {
            let message = advertisement(wrong);
            let read: Vec<_> = options(&message).expect("options").collect();
            assert_eq!(read, [Err(BadNdpOption)], "{wrong:?}");
        }
        assert_eq!(options(&advertisement(&[])).expect("none").count(), 0);
    }

    #[test]
    fn each_type_has_its_options_behind_its_fields() {
        for (kind, at) in [(133, 8), (134, 16), (135, 24), (136, 24), (137, 40)] {
            let mut message = vec![kind; at];
            assert!(is_of(kind) && options(&message[..at - 1]).is_none(), "{kind}");
            message.extend([1, 1, 2, 3, 4, 5, 6, 7]);
            let option = options(&message).and_then(|mut options| options.next()).expect("one");
            assert_eq!(option.map(|o| o.link_layer()), Ok(Some([2, 3, 4, 5, 6, 7].as_slice())), "{kind}");
        }
        for kind in [128, 132, 138] {
            assert!(!is_of(kind) && options(&[kind; 64]).is_none(), "{kind}");
        }
    }
}
