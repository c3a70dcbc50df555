//! Arguments that can't be served, as opposed to failures: a program that got one exits with 2.

/// What is wrong with an argument, with its value and what to give instead.
#[derive(Debug)]
pub struct WrongArguments(pub String);

impl std::fmt::Display for WrongArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongArguments {}

impl WrongArguments {
    /// The same error, as one of the arguments.
    pub fn because(e: anyhow::Error) -> anyhow::Error {
        Self(format!("{e:#}")).into()
    }
}
