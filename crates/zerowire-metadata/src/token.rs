//! Session tokens: random, bounded in number, with a lifetime.

use std::hint::black_box;
use std::time::Duration;

/// The longest lifetime of a token in seconds: six hours, as cloud guests
/// expect.
pub const MAX_TOKEN_TTL_SECONDS: u32 = 21_600;

/// Tokens kept for a guest. Beyond it the token that expires soonest is dropped. 1024 is far more
/// than agents of one guest use, and costs at most 48 KiB.
pub const MAX_TOKENS: usize = 1024;

/// Bytes of randomness in a token: 256 bits can't be guessed.
const TOKEN_BYTES: usize = 32;

#[derive(Debug)]
struct SessionToken {
    secret: [u8; TOKEN_BYTES],
    expires: Duration,
}

/// The tokens given out to one guest. Times are those of the service's caller.
#[derive(Debug, Default)]
pub(crate) struct TokenStore {
    entries: Vec<SessionToken>,
}

impl TokenStore {
    /// Makes a token that lives for `ttl_seconds`, as lower-case hexadecimal
    /// text.
    ///
    /// # Errors
    /// The error of getrandom(2), which happens only where it is forbidden.
    pub(crate) fn issue(&mut self, now: Duration, ttl_seconds: u32) -> Result<String, rustix::io::Errno> {
        let secret = random_secret()?;
        self.entries.retain(|entry| entry.expires > now);
        if self.entries.len() >= MAX_TOKENS {
            let soonest = self.entries.iter().enumerate();
            if let Some((index, _)) = soonest.min_by_key(|(_, entry)| entry.expires) {
                self.entries.swap_remove(index);
            }
        }
        let expires = now.saturating_add(Duration::from_secs(u64::from(ttl_seconds)));
        self.entries.push(SessionToken { secret, expires });
        Ok(to_hex(&secret))
    }

    /// Whether `text` is a token that hasn't expired. The time this takes
    /// depends on the number of tokens only, not on their content.
    pub(crate) fn is_valid(&self, now: Duration, text: &[u8]) -> bool {
        let Some(candidate) = from_hex(text) else {
            return false;
        };
        let mut valid = false;
        for entry in &self.entries {
            let same = equal(&entry.secret, &candidate);
            valid |= same & (entry.expires > now);
        }
        valid
    }

    /// Bytes of memory held.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<SessionToken>()
    }
}

fn random_secret() -> Result<[u8; TOKEN_BYTES], rustix::io::Errno> {
    let mut secret = [0; TOKEN_BYTES];
    let mut filled = 0;
    // getrandom(2) gives up to 256 bytes at once unless a signal comes while
    // the pool isn't initialised, so this loop nearly always runs once.
    while filled < TOKEN_BYTES {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut secret[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(secret)
}

/// Compares without a branch on the content, against timing attacks.
fn equal(left: &[u8; TOKEN_BYTES], right: &[u8; TOKEN_BYTES]) -> bool {
    let mut difference = 0;
    for (a, b) in left.iter().zip(right) {
        difference |= black_box(a ^ b);
    }
    black_box(difference) == 0
}

fn to_hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value & 15)]);
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte)]).collect()
}

fn from_hex(text: &[u8]) -> Option<[u8; TOKEN_BYTES]> {
    if text.len() != 2 * TOKEN_BYTES {
        return None;
    }
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; TOKEN_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
