//! The ways of receiving.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a program takes what has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiveMode {
    /// Calls that copy into a buffer of the program; it sleeps in poll().
    Copy,
    /// Windows that the program has mapped; it sleeps until one is published.
    Mapped,
    /// The same; it looks at the window's flag in a loop.
    Polling,
    /// The same as [`ReceiveMode::Mapped`], with payload left in the guest's memory.
    Direct,
}

impl ReceiveMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Mapped, Self::Polling, Self::Direct];

    /// The letter behind `-z`.
    pub fn letter(self) -> char {
        match self {
            Self::Copy => 'n',
            Self::Mapped => 'y',
            Self::Polling => 'u',
            Self::Direct => 'd',
        }
    }
}

impl fmt::Display for ReceiveMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Copy => "copy",
            Self::Mapped => "mapped",
            Self::Polling => "polling",
            Self::Direct => "direct",
        })
    }
}

impl FromStr for ReceiveMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |mode: &&Self| text == mode.to_string() || text == mode.letter().to_string();
        Self::ALL.iter().find(named).copied().ok_or_else(|| {
            format!("mode '{text}': choose n (copy), y (mapped), u (mapped, polling) or d (direct)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_and_names_are_parsed() {
        for mode in ReceiveMode::ALL {
            assert_eq!(mode.letter().to_string().parse(), Ok(mode));
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("x".parse::<ReceiveMode>().unwrap_err().contains("'x'"));
    }
}
