//! The ways of receiving.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How a program takes what has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ReceiveMode {
    /// Calls that copy into a buffer of the program; it sleeps in poll().
    #[value(name = "n", alias = "copy")]
    Copy,
    /// Windows that the program has mapped; it sleeps until one is published.
    #[value(name = "y", alias = "mapped")]
    Mapped,
    /// The same; it looks at the window's flag in a loop.
    #[value(name = "u", alias = "polling")]
    Polling,
    /// The same as [`ReceiveMode::Mapped`], with payload left in the guest's memory.
    #[value(name = "d", alias = "direct")]
    Direct,
}

impl ReceiveMode {
    /// The letter behind `-z`.
    pub fn letter(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_and_words_name_the_same_modes() {
        for mode in ReceiveMode::value_variants() {
            for name in [mode.letter(), mode.to_string()] {
                assert_eq!(ReceiveMode::from_str(&name, false), Ok(*mode));
            }
        }
    }
}
