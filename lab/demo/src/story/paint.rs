//! Colours of a demonstration: on a terminal that has them, unless NO_COLOR is set.

use std::ffi::OsStr;
use std::io::IsTerminal as _;

/// Whether text gets colours, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paint {
    /// True: codes of ECMA-48 stand around what is painted.
    is_on: bool,
}

impl Paint {
    /// As standard output and the environment have it.
    pub fn of_output() -> Self {
        let name = |name| std::env::var_os(name);
        let is_terminal = std::io::stdout().is_terminal();
        Self::from(is_terminal, name("NO_COLOR").as_deref(), name("TERM").as_deref())
    }

    fn from(is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> Self {
        let is_refused = no_color.is_some_and(|value| !value.is_empty());
        Self { is_on: is_terminal && !is_refused && term.is_none_or(|term| term != "dumb") }
    }

    /// The title of a step.
    pub fn title(self, text: &str) -> String {
        self.with("1;36", text)
    }

    /// A command as one types it.
    pub fn command(self, text: &str) -> String {
        self.with("1", text)
    }

    /// What went well.
    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.is_on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        let on = |is_terminal, no_color: Option<&str>, term: Option<&str>| {
            let paint = Paint::from(is_terminal, no_color.map(OsStr::new), term.map(OsStr::new));
            paint.title("x").contains('\x1b')
        };
        assert!(on(true, None, Some("xterm")));
        assert!(on(true, Some(""), None), "an empty NO_COLOR says nothing");
        assert!(!on(false, None, Some("xterm")));
        assert!(!on(true, Some("1"), Some("xterm")));
        assert!(!on(true, None, Some("dumb")));
    }
}
