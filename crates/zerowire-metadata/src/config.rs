//! What a service is made from, and the errors that a user can meet.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::tree::{MAX_DEPTH, MAX_TREE_BYTES, MetadataTree};

/// The MAC address of the service unless configured otherwise: locally
/// administered and unicast (IEEE 802, second and first bit of the first byte).
pub const DEFAULT_MAC: [u8; 6] = [0x06, 0x01, 0x23, 0x45, 0x67, 0x01];

/// The IP MTU of the service unless configured otherwise, in bytes.
pub const DEFAULT_MTU_BYTES: u16 = 1500;

/// The smallest IP MTU that the service uses (RFC 791: every host takes 576
/// bytes).
pub const MIN_MTU_BYTES: u16 = 576;

/// The largest IP MTU that the service uses: the TCP stack's own limit.
pub const MAX_MTU_BYTES: u16 = 9216;

/// Whether a `GET` needs a session token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenPolicy {
    /// Every `GET` needs a token from `PUT /latest/api/token`; without one it
    /// gets 401. It stops requests that a guest's program was tricked into
    /// sending, since those can rarely set headers.
    #[default]
    Required,
    /// A `GET` without a token is answered; one with a wrong or expired token
    /// still gets 401.
    Optional,
}

/// What a [`crate::MetadataService`] is made from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The metadata to serve; shared, so that many guests can have one tree.
    pub tree: Arc<MetadataTree>,
    /// Whether a `GET` needs a token.
    pub token_policy: TokenPolicy,
    /// The MAC address that ARP replies name and that frames come from.
    pub mac: [u8; 6],
    /// The guest's IP MTU in bytes, without the Ethernet header; values
    /// outside [`MIN_MTU_BYTES`]..=[`MAX_MTU_BYTES`] are brought into that range.
    pub mtu: u16,
}

impl Config {
    /// A configuration with tokens required, [`DEFAULT_MAC`] and
    /// [`DEFAULT_MTU_BYTES`].
    #[must_use]
    pub fn new(tree: Arc<MetadataTree>) -> Self {
        Self { tree, token_policy: TokenPolicy::default(), mac: DEFAULT_MAC, mtu: DEFAULT_MTU_BYTES }
    }

    zerowire_wire::setters! { token_policy: TokenPolicy, mac: [u8; 6], mtu: u16 }
}

/// Why metadata or a configuration was refused. Each message is what the user
/// reads.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// A key holds a control character, which would break directory listings.
    #[error(
        "metadata: key {key:?} under /{parent} has a control character, which can't be listed one key a line; rename it"
    )]
    ControlCharacter {
        /// The key.
        key: String,
        /// Where it is: keys joined by slashes.
        parent: String,
    },
    /// An object has a key twice, and a path can name one value.
    #[error(
        "metadata: key {key:?} is twice under /{parent}, and one value would be lost; remove or rename one"
    )]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where it is: keys joined by slashes.
        parent: String,
    },
    /// A key is empty, so that no path can name it.
    #[error("metadata: an empty key under /{parent} can't be named by a path; give it a name")]
    EmptyKey {
        /// Where it is: keys joined by slashes.
        parent: String,
    },
    /// The MAC address of the service is a group address or all zero.
    #[error(
        "metadata: {} can't be the service's MAC address; use a unicast one such as 06:01:23:45:67:01", mac_text(.mac)
    )]
    Mac {
        /// The address.
        mac: [u8; 6],
    },
    /// The top of the document isn't an object.
    #[error(
        "metadata: the document is {found}, but must be an object such as {{\"latest\": {{\"meta-data\": {{}}}}}}"
    )]
    NotAnObject {
        /// What it is, with an article.
        found: &'static str,
    },
    /// The text isn't JSON.
    #[error("metadata: line {line}, column {column}: {message}; correct the JSON there")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1 (0 at the end of a line).
        column: usize,
        /// What the parser expected.
        message: String,
    },
    /// Objects or arrays are nested too deeply.
    #[error("metadata: nested more than {MAX_DEPTH} levels deep at /{parent}; flatten it")]
    TooDeep {
        /// Where it is: keys joined by slashes.
        parent: String,
    },
    /// The document is too large.
    #[error("metadata: {len} bytes are more than the limit of {MAX_TREE_BYTES}; make it smaller")]
    TooLarge {
        /// Its length in bytes.
        len: usize,
    },
}

fn mac_text(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
