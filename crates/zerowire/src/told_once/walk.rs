//! Shared by the tests of all crates.

use std::error::Error;

/// Asserts that no cause's text is part of a text before it in the chain, which is printed whole (`{:#}` of anyhow).
#[track_caller]
pub fn told_once(error: &dyn Error) {
    let mut chain = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        chain.push(cause.to_string());
        next = cause.source();
    }
    for (n, text) in chain.iter().enumerate() {
        let earlier = chain[..n].iter().find(|before| before.contains(text.as_str()));
        assert!(earlier.is_none(), "{text:?} is told twice: {chain:?}");
    }
}

/// Also asserts that the first text names the cause, of which C programs see no more.
#[track_caller]
pub fn told_once_with(error: &dyn Error, cause: &str) {
    told_once(error);
    let text = error.to_string();
    assert!(text.contains(cause), "{cause:?} is not told: {text}");
}
