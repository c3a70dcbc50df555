//! Words of the command line: tables and messages name a choice as it does, and arguments that
//! can't be served are refused.

use clap::ValueEnum;

/// What a choice does: the first paragraph of its documentation.
pub fn meaning(choice: &impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
}

/// Writes choices by the words that the command line takes for them.
macro_rules! by_words {
    ($choice:ty) => {
        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let value = clap::ValueEnum::to_possible_value(self);
                f.pad(value.as_ref().map_or("", clap::builder::PossibleValue::get_name))
            }
        }
    };
}
pub(crate) use by_words;

/// The choices that a command line without arguments makes.
pub(crate) fn defaults<T: clap::Args>() -> T {
    let command = T::augment_args(clap::Command::new("defaults"));
    T::from_arg_matches(&command.get_matches_from(["defaults"])).unwrap_or_else(|error| error.exit())
}

/// Returns [`crate::WrongArguments`] from the function, as `bail!` returns an error.
macro_rules! wrong {
    ($($text:tt)*) => {
        return Err($crate::WrongArguments(format!($($text)*)).into())
    };
}
pub(crate) use wrong;

/// Refuses a measurement without rounds.
pub(crate) fn verify_rounds(rounds: usize) -> anyhow::Result<()> {
    if rounds == 0 {
        wrong!("0 rounds: give at least 1");
    }
    Ok(())
}
