//! Attributes: length, type, value, padding to four bytes (`struct nlattr`,
//! include/uapi/linux/netlink.h).

use super::error::Malformed;

/// Bytes of length and type.
const HEADER: usize = 4;
/// The upper two bits of a type are flags: NLA_F_NESTED, NLA_F_NET_BYTEORDER.
const KIND: u16 = 0x3fff;

/// The length of something padded to the alignment of netlink.
pub(super) const fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// One attribute of a received message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute<'a> {
    /// Its type, without flags.
    pub(super) kind: u16,
    /// Its value, as long as it says.
    pub(super) value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The value as an unsigned number of one, two, four or eight bytes. Newer attributes have four
    /// or eight, whichever the number needs (type `uint` of the specifications).
    pub(super) fn number(&self) -> Result<u64, Malformed> {
        match *self.value {
            [a] => Ok(a.into()),
            [a, b] => Ok(u16::from_ne_bytes([a, b]).into()),
            [a, b, c, d] => Ok(u32::from_ne_bytes([a, b, c, d]).into()),
            [a, b, c, d, e, f, g, h] => Ok(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => Err(Malformed("a number that has not 1, 2, 4 or 8 bytes")),
        }
    }

    /// The same, where it fits 32 bits.
    pub(super) fn word(&self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number above 32 bits"))
    }

    /// The value as text, up to its NUL.
    pub(super) fn text(&self) -> String {
        let end = self.value.iter().position(|b| *b == 0).unwrap_or(self.value.len());
        String::from_utf8_lossy(&self.value[..end]).into_owned()
    }

    /// The value as 32-bit words.
    pub(super) fn words(&self) -> Result<Vec<u32>, Malformed> {
        let (words, []) = self.value.as_chunks::<4>() else {
            return Err(Malformed("a table whose length is no multiple of 4"));
        };
        Ok(words.iter().map(|w| u32::from_ne_bytes(*w)).collect())
    }

    /// The attributes inside.
    pub(super) fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }
}

/// The attributes in some bytes. An item that can't be is an error, and the last item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.rest);
        let Some((&[l0, l1, k0, k1], _)) = rest.split_first_chunk::<HEADER>() else {
            // Fewer bytes than a header has are padding, as the kernel's own nla_for_each_attr
            // takes them.
            return None;
        };
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = rest.get(HEADER..len) else {
            return Some(Err(Malformed("an attribute that is longer than its message")));
        };
        self.rest = rest.get(aligned(len)..).unwrap_or_default();
        Some(Ok(Attribute { kind: u16::from_ne_bytes([k0, k1]) & KIND, value }))
    }
}

/// Attributes of a message to be sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Builder {
    bytes: Vec<u8>,
}

/// Marks an attribute that holds others (NLA_F_NESTED).
const NESTED: u16 = 1 << 15;

impl Builder {
    /// Adds an attribute. `value` comes from this crate and is short.
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let len = HEADER + value.len();
        debug_assert!(len <= usize::from(u16::MAX));
        self.bytes.extend_from_slice(&(len as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(aligned(self.bytes.len()), 0);
        self
    }

    pub(super) fn word(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds text with its NUL.
    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub(super) fn nested(self, kind: u16, inner: &Builder) -> Self {
        self.bytes(kind | NESTED, &inner.bytes)
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
