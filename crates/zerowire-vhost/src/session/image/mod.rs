//! A session as a value: what a front end has said, and the descriptors that it gave.
//!
//! A process hands a VM's session over to its successor by it. The front end's socket goes along,
//! so the front end sees no disconnection.
//!
//! ```text
//! "zwimage\n" | version u32 | length u32 | that many bytes of JSON     descriptors in order
//! ```
//! Numbers are little-endian. In the JSON the word `file` stands where a descriptor belongs, so it
//! has no number of either process. The descriptors follow in the order in which [`Parts::map`]
//! comes to these places.
//!
//! **Trust.** Whoever gives an image is not trusted. [`SessionImage::decode`] checks counts and
//! ranges. The session that takes an image up checks it against its device, as it checks messages.

mod parts;
mod transfer;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use parts::at_most;
pub(super) use parts::{
    AreaImage, ConnectionImage, DriverImage, FrontEndImage, InflightImage, LogImage, MAX_RINGS, MemoryImage,
    MigrationImage, Parts, RegionImage, RingImage,
};

/// The form of the JSON. Another form has another number.
const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"zwimage\n";

/// Bytes before the JSON.
const HEAD_BYTES: usize = 16;

/// Bytes of an image at most: regions that were added again can take most of them.
const MAX_BYTES: usize = 4 << 20;

/// A descriptor, which the session and its image share.
pub(super) type File = Arc<OwnedFd>;

/// Why an image can't be made, sent or taken up. The text names the value and the rule.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant says what it means; its text names its fields")]
pub enum ImageError {
    /// It begins with other bytes.
    #[error("a session's image begins with \"zwimage\\n\", and these bytes do not")]
    Foreign,
    /// Its form is that of another version.
    #[error(
        "a session's image of version {0}: this program knows version {VERSION}; hand over to the same one"
    )]
    Version(u32),
    /// More or fewer bytes than there must be.
    #[error("a session's image of {got} bytes, where {rule}")]
    Length { got: usize, rule: String },
    /// The JSON is not an image's.
    #[error("a session's image: {0}")]
    Syntax(serde_json::Error),
    /// A value is out of its range.
    #[error("a session's image: {what} is {value}, {rule}")]
    Value { what: String, value: u64, rule: &'static str },
    /// More or fewer descriptors than the image names.
    #[error("{got} descriptors came with a session's image that names {named}")]
    Descriptors { got: usize, named: usize },
    /// The session can't go on here.
    #[error("a session's image: {0}")]
    Refused(String),
    /// A system call failed.
    #[error("a session's image: {what}: {cause}")]
    System { what: &'static str, cause: io::Error },
}

impl From<serde_json::Error> for ImageError {
    fn from(cause: serde_json::Error) -> Self {
        Self::Syntax(cause)
    }
}

impl ImageError {
    pub(super) fn system(what: &'static str, cause: impl Into<io::Error>) -> Self {
        Self::System { what, cause: cause.into() }
    }
}

/// Stands for a descriptor in the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Token {
    #[serde(rename = "file")]
    File,
}

/// What a session consists of, for the process that goes on with it. Clones share the descriptors.
#[derive(Clone, Debug)]
pub struct SessionImage(pub(super) Box<Parts<File>>);

impl SessionImage {
    /// The bytes of an image, and its descriptors in their order.
    ///
    /// # Errors
    /// [`ImageError::System`] where a descriptor that a clone shares can't be duplicated.
    pub fn encode(self) -> Result<(Vec<u8>, Vec<OwnedFd>), ImageError> {
        let mut files = Vec::new();
        let parts = self.0.map(&mut |file: File| {
            let file = Arc::try_unwrap(file).or_else(|shared| shared.try_clone());
            files.push(file.map_err(|e| ImageError::system("duplicating a descriptor", e))?);
            Ok::<_, ImageError>(Token::File)
        })?;
        let json = serde_json::to_vec(&parts)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((json.len() as u32).to_le_bytes());
        bytes.extend(json);
        check_length(bytes.len())?;
        Ok((bytes, files))
    }

    /// The image of these bytes and descriptors. Descriptors are closed on an error.
    ///
    /// # Errors
    /// All of [`ImageError`] but [`ImageError::System`].
    pub fn decode(bytes: &[u8], files: Vec<OwnedFd>) -> Result<Self, ImageError> {
        check_length(bytes.len())?;
        let length = |rule: String| ImageError::Length { got: bytes.len(), rule };
        let Some((head, json)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Err(length(format!("{HEAD_BYTES} are the least")));
        };
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if !head.starts_with(&MAGIC) {
            return Err(ImageError::Foreign);
        }
        if number(8) != VERSION {
            return Err(ImageError::Version(number(8)));
        }
        let said = number(12) as usize;
        if json.len() != said {
            return Err(length(format!("it says that {said} follow its first {HEAD_BYTES}")));
        }
        let parts: Parts<Token> = serde_json::from_slice(json)?;
        parts.check()?;
        let (got, mut named) = (files.len(), 0);
        let mut files = files.into_iter();
        let parts = parts.map(&mut |_| {
            named += 1;
            Ok::<_, ImageError>(files.next().map(Arc::new))
        })?;
        if named != got {
            return Err(ImageError::Descriptors { got, named });
        }
        let parts = parts.map(&mut |file| file.ok_or(ImageError::Descriptors { got, named }))?;
        Ok(Self(Box::new(parts)))
    }
}

fn check_length(got: usize) -> Result<(), ImageError> {
    if got <= MAX_BYTES {
        return Ok(());
    }
    Err(ImageError::Length { got, rule: format!("{MAX_BYTES} are the most") })
}
