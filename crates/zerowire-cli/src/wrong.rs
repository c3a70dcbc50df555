//! Arguments that can't be served, as opposed to failures: a program that got one exits with 2.

/// What is wrong with an argument, with its value and what to give instead.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongArguments(pub String);

impl WrongArguments {
    /// The same error, as one of the arguments.
    pub fn because(e: anyhow::Error) -> anyhow::Error {
        Self(format!("{e:#}")).into()
    }
}
