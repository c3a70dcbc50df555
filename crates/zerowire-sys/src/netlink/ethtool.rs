//! The family "ethtool": what a driver tells of its rings, channels and spreading
//! (include/uapi/linux/ethtool_netlink_generated.h, Documentation/networking/ethtool-netlink.rst).

use super::attributes::{Attributes, Builder};
use super::error::{Malformed, NetlinkError};
use super::generic::Family;
use super::socket::Extent;

const FEATURES_GET: u8 = 11;
const RINGS_GET: u8 = 15;
const RINGS_SET: u8 = 16;
const CHANNELS_GET: u8 = 17;
const RSS_GET: u8 = 38;
const RSS_SET: u8 = 48;

/// The first attribute of each question: which interface. The families' answers have it too.
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;

/// A socket on the family.
#[derive(Debug)]
pub struct Ethtool {
    family: Family,
}

impl Ethtool {
    /// Opens a socket in this thread's network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::NoFamily`] before Linux 5.6 or without CONFIG_ETHTOOL_NETLINK.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { family: Family::open("ethtool", "5.6")? })
    }

    /// Sizes and modes of the rings of interface number `index` (ETHTOOL_MSG_RINGS_GET).
    ///
    /// # Errors
    /// ENODEV; EOPNOTSUPP where the driver doesn't tell.
    pub fn rings(&mut self, index: u32) -> Result<Rings, NetlinkError> {
        self.family.ask_one("asking for an interface's rings", RINGS_GET, header(index), Rings::parse)
    }

    /// How many channels there are (ETHTOOL_MSG_CHANNELS_GET).
    ///
    /// # Errors
    /// ENODEV; EOPNOTSUPP where the driver doesn't tell.
    pub fn channels(&mut self, index: u32) -> Result<Channels, NetlinkError> {
        self.family.ask_one(
            "asking for an interface's channels",
            CHANNELS_GET,
            header(index),
            Channels::parse,
        )
    }

    /// How flows are spread over the queues, in the default context (ETHTOOL_MSG_RSS_GET, since
    /// Linux 6.3).
    ///
    /// # Errors
    /// ENODEV; EOPNOTSUPP where the driver doesn't tell, or the kernel doesn't know the question.
    pub fn rss(&mut self, index: u32) -> Result<Rss, NetlinkError> {
        self.family.ask_one("asking for an interface's RSS", RSS_GET, header(index), Rss::parse)
    }

    /// Which features are on (ETHTOOL_MSG_FEATURES_GET).
    ///
    /// # Errors
    /// ENODEV.
    pub fn features(&mut self, index: u32) -> Result<Features, NetlinkError> {
        self.family.ask_one(
            "asking for an interface's features",
            FEATURES_GET,
            header(index),
            Features::parse,
        )
    }
}

impl Ethtool {
    /// Header split on, off, or (`None`) as the driver likes (ETHTOOL_A_RINGS_TCP_DATA_SPLIT of
    /// ETHTOOL_MSG_RINGS_SET).
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; ENODEV; EOPNOTSUPP or EINVAL where the driver refuses.
    pub fn set_data_split(&mut self, index: u32, split: Option<DataSplit>) -> Result<(), NetlinkError> {
        let value = match split {
            None => 0,
            Some(DataSplit::Off) => 1,
            Some(DataSplit::On) => 2,
        };
        self.set("setting header split", RINGS_SET, header(index).bytes(11, &[value]))
    }

    /// Only frames longer than `bytes` are split (ETHTOOL_A_RINGS_HDS_THRESH).
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; ENODEV; EOPNOTSUPP or EINVAL where the driver refuses.
    pub fn set_hds_thresh(&mut self, index: u32, bytes: u32) -> Result<(), NetlinkError> {
        self.set("setting the split threshold", RINGS_SET, header(index).word(17, bytes))
    }

    /// Sets the indirection table of the default context (ETHTOOL_A_RSS_INDIR of
    /// ETHTOOL_MSG_RSS_SET, since Linux 6.17). An empty table restores the default one, which
    /// follows the number of channels again (net/ethtool/rss.c, rss_set_prep_indir). Tables of NICs
    /// have at most some thousand entries.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; ENODEV; EOPNOTSUPP or EINVAL where the driver refuses.
    pub fn set_rss_table(&mut self, index: u32, table: &[u32]) -> Result<(), NetlinkError> {
        let bytes: Vec<u8> = table.iter().flat_map(|queue| queue.to_ne_bytes()).collect();
        self.set("setting the RSS table", RSS_SET, header(index).bytes(4, &bytes))
    }

    fn set(&mut self, what: &'static str, command: u8, attributes: Builder) -> Result<(), NetlinkError> {
        self.family.ask(what, command, Extent::One, attributes).map(drop)
    }
}

fn header(index: u32) -> Builder {
    Builder::default().nested(HEADER, &Builder::default().word(HEADER_DEV_INDEX, index))
}

/// Whether the NIC puts headers and payload of TCP into different buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
pub enum DataSplit {
    /// `tcp-data-split off`.
    Off,
    /// `tcp-data-split on`.
    On,
}

/// Rings of an interface. `None`: the driver or the kernel doesn't tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Rings {
    /// Entries of each receive ring.
    pub rx: Option<u32>,
    /// The most that it can have.
    pub rx_max: Option<u32>,
    /// Bytes of a receive buffer.
    pub rx_buf_len: Option<u32>,
    /// Header split.
    pub data_split: Option<DataSplit>,
    /// Bytes: headers are split from data only in frames longer than this; 0: in all (since Linux
    /// 6.14).
    pub hds_thresh: Option<u32>,
    /// The highest such threshold.
    pub hds_thresh_max: Option<u32>,
}

impl Rings {
    pub(super) fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let mut rings = Self::default();
        for attribute in Attributes::new(attributes) {
            let a = attribute?;
            match a.kind {
                2 => rings.rx_max = Some(a.word()?),
                6 => rings.rx = Some(a.word()?),
                // 0 stands for "unknown".
                10 => rings.rx_buf_len = Some(a.word()?).filter(|bytes| *bytes > 0),
                11 => {
                    rings.data_split = match a.number()? {
                        1 => Some(DataSplit::Off),
                        2 => Some(DataSplit::On),
                        _ => None,
                    }
                }
                17 => rings.hds_thresh = Some(a.word()?),
                18 => rings.hds_thresh_max = Some(a.word()?),
                _ => {}
            }
        }
        Ok(rings)
    }
}

/// Channels of an interface in use, and the most that there can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Channels {
    /// Channels that only receive.
    pub rx: u32,
    /// Channels that receive and send.
    pub combined: u32,
    /// The most that only receive.
    pub rx_max: u32,
    /// The most that do both.
    pub combined_max: u32,
}

impl Channels {
    /// Receive queues in use.
    pub fn receive_queues(&self) -> u32 {
        self.rx.saturating_add(self.combined)
    }

    /// The most receive queues that there can be.
    pub fn receive_queues_max(&self) -> u32 {
        self.rx_max.saturating_add(self.combined_max)
    }

    pub(super) fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let mut channels = Self::default();
        for attribute in Attributes::new(attributes) {
            let a = attribute?;
            match a.kind {
                2 => channels.rx_max = a.word()?,
                5 => channels.combined_max = a.word()?,
                6 => channels.rx = a.word()?,
                9 => channels.combined = a.word()?,
                _ => {}
            }
        }
        Ok(channels)
    }
}

/// How flows are spread over the queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Rss {
    /// Number of the context; `None` for the default one.
    pub context: Option<u32>,
    /// The indirection table: a queue for each remainder of the hash.
    pub table: Vec<u32>,
}

impl Rss {
    /// Which part of the table names `queue`: its entries, of all.
    pub fn share(&self, queue: u32) -> (usize, usize) {
        (self.table.iter().filter(|q| **q == queue).count(), self.table.len())
    }

    pub(super) fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let mut rss = Self::default();
        for attribute in Attributes::new(attributes) {
            let a = attribute?;
            match a.kind {
                2 => rss.context = Some(a.word()?),
                4 => rss.table = a.words()?,
                _ => {}
            }
        }
        Ok(rss)
    }
}

/// Names of the features that are on, as `ethtool -k` knows them inside the kernel (such as
/// `rx-ntuple-filter`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Those that the interface can turn on or off.
    pub hardware: Vec<String>,
    /// Those that are on.
    pub active: Vec<String>,
}

impl Features {
    pub(super) fn parse(attributes: &[u8]) -> Result<Self, Malformed> {
        let mut features = Self::default();
        for attribute in Attributes::new(attributes) {
            let a = attribute?;
            match a.kind {
                2 => features.hardware = names(a.nested())?,
                4 => features.active = names(a.nested())?,
                _ => {}
            }
        }
        Ok(features)
    }
}

/// The names in a bit set, which is a list of bits (3). Each bit (1) has an index, a name (2) and,
/// where the set has a mask, a value (3).
fn names(set: Attributes<'_>) -> Result<Vec<String>, Malformed> {
    let mut names = Vec::new();
    let mut is_list = false;
    let mut bits = None;
    for attribute in set {
        let a = attribute?;
        match a.kind {
            // ETHTOOL_A_BITSET_NOMASK: each bit that is listed is set.
            1 => is_list = true,
            3 => bits = Some(a.nested()),
            _ => {}
        }
    }
    for bit in bits.into_iter().flatten() {
        let (mut name, mut is_set) = (None, is_list);
        for attribute in bit?.nested() {
            let a = attribute?;
            match a.kind {
                2 => name = Some(a.text()),
                3 => is_set = true,
                _ => {}
            }
        }
        names.extend(name.filter(|_| is_set));
    }
    Ok(names)
}
