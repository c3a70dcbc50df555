//! What a chain of errors tells of their causes.

use std::error::Error;

/// Checks that the first text names the cause, since C programs see no more, and that a chain that
/// is printed whole (`{:#}` of anyhow) tells nothing twice.
#[track_caller]
pub fn told_once(error: &dyn Error, cause: &str) {
    let (mut texts, mut next) = (Vec::new(), Some(error));
    while let Some(error) = next {
        texts.push(error.to_string());
        next = error.source();
    }
    assert!(texts[0].contains(cause), "{cause:?} is not told: {texts:?}");
    for (n, text) in texts.iter().enumerate() {
        assert!(
            !texts[..n].iter().any(|before| before.contains(text.as_str())),
            "{text:?} is told twice: {texts:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct Twice(io::Error);

    impl fmt::Display for Twice {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "twice: {}", self.0)
        }
    }

    impl Error for Twice {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    #[should_panic(expected = "told twice")]
    fn a_cause_that_is_told_twice_is_found() {
        told_once(&Twice(io::ErrorKind::BrokenPipe.into()), "broken pipe");
    }

    #[test]
    #[should_panic(expected = "not told")]
    fn a_cause_that_is_not_told_is_found() {
        told_once(&io::Error::other("something"), "broken pipe");
    }
}
