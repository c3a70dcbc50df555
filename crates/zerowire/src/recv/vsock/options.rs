//! How a connection is mapped. Options are fixed when it is made: they are an argument of
//! connecting and of listening, and nothing changes them later.

use zerowire_wire::mapped::MapOptions;

/// What the guest's socket is (virtio 1.3 §5.10.6, type).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MappedKind {
    /// SOCK_STREAM.
    #[default]
    Stream,
    /// SOCK_SEQPACKET: messages.
    SeqPacket,
}

impl MappedKind {
    /// The number in the handshake, which is virtio's.
    pub fn number(self) -> u16 {
        match self {
            Self::Stream => 1,
            Self::SeqPacket => 2,
        }
    }
}

/// The same options with another value of a field of [`MapOptions`].
macro_rules! map_options {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        $(
            $(#[$doc])*
            pub fn $field(mut self, $field: $type) -> Self {
                self.map.$field = $field;
                self
            }
        )*
    };
}

/// Options of connections. The limits are those of [`MapOptions`]; they are checked when a
/// connection is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedOptions {
    pub(super) kind: MappedKind,
    pub(super) map: MapOptions,
}

impl MappedOptions {
    /// For a stream: 4 windows of 128 data pages, packed.
    pub fn stream() -> Self {
        Self::default()
    }

    /// For messages: 4 windows of 128 data pages, parts of a message packed.
    pub fn seqpacket() -> Self {
        Self { kind: MappedKind::SeqPacket, ..Self::default() }
    }

    /// Stream or messages.
    pub fn kind(mut self, kind: MappedKind) -> Self {
        self.kind = kind;
        self
    }

    map_options! {
        /// Windows in the ring, 2 to 64, default 4: the program can hold this many at once.
        windows: u32,
        /// Header pages of a window, 1 to 16, default 1. One page describes 510 packets.
        header_pages: u32,
        /// Data pages of a window, 1 to 4096, default 128 (512 KiB).
        data_pages: u32,
        /// Small packets of a stream, and parts of one message, share pages. Default true; with
        /// false each packet starts on a page of its own.
        packed: bool,
        /// Bytes that make the daemon publish a window, as SO_RCVLOWAT does for sockets: 1 to those
        /// of a window, default 1. At the end of the stream fewer are published too.
        lowat: u32,
        /// Bytes that the guest may send ahead; 0, the default: what the daemon gives (its
        /// `--buffer`).
        credit: u32,
        /// Payload stays in the guest's memory where the daemon allows it
        /// (`--share-guest-memory`). Default false.
        direct: bool,
    }

    /// As the handshake has them.
    pub fn map_options(&self) -> &MapOptions {
        &self.map
    }
}

impl From<MapOptions> for MappedOptions {
    /// For a stream.
    fn from(map: MapOptions) -> Self {
        Self { kind: MappedKind::Stream, map }
    }
}
