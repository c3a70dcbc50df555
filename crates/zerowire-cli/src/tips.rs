//! Tips for a command or an option that is not known.
//!
//! clap compares words by the letters that they share, in order or not: it takes `--pcap` for
//! `--print-capabilities`, and `nte` for nothing. Here a word is meant if few keys were hit wrong,
//! or if it goes on where the other one ends.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Options that earlier versions had, and what a user of them reads besides that they are not
/// known.
const GONE: [(&str, &str); 3] = [
    (
        "--pin",
        "it is gone: taps and packet ports register no guest memory, since that saved next to no CPU time; an xdp port \
         takes pin=all, pin=partial or pin=off among its options (--port xdp:IF,pin=partial)",
    ),
    ("--io", "it is gone: system calls move all frames, since io_uring saved no CPU time"),
    ("--syscalls", "it is gone: system calls are made as the C library makes them"),
];

/// Commands that earlier versions had, and the programs that they are now.
const MOVED: [(&str, &str); 2] = [
    ("bench", "it is a program of its own now: 'zerowire-bench net', 'zerowire-bench vsock' and so on"),
    ("demo", "it is a program of its own now: 'zerowire-demo --soft' (from the sources: 'make demo-soft')"),
];

/// Letters for each key that may be wrong.
const LETTERS: usize = 3;

/// The same error, whose tip names what is meant, or which has none. `line` is the command line.
pub fn mend(mut error: Error, program: &Command, line: &[OsString]) -> Error {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg)
                && let Some(ContextValue::String(meant)) = error.get(ContextKind::SuggestedArg)
                && wrong_keys(given, meant).is_none()
            {
                error.remove(ContextKind::SuggestedArg);
            }
            let gone = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(given)) => GONE.iter().find(|(option, _)| option == given),
                _ => None,
            };
            if let Some((_, tip)) = gone {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
            }
        }
        ErrorKind::InvalidSubcommand => {
            if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) {
                if let Some((_, tip)) = MOVED.iter().find(|(command, _)| command == given) {
                    error.remove(ContextKind::SuggestedSubcommand);
                    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
                    return error;
                }
                let asked = asked(program, line);
                let names = asked.get_subcommands().map(Command::get_name);
                let nearest = names.filter_map(|name| Some((wrong_keys(given, name)?, name))).min();
                match nearest {
                    Some((_, name)) => {
                        let meant = ContextValue::Strings(vec![name.to_owned()]);
                        error.insert(ContextKind::SuggestedSubcommand, meant);
                    }
                    None => drop(error.remove(ContextKind::SuggestedSubcommand)),
                }
            }
        }
        _ => {}
    }
    error
}

/// The command that the words of the line name, as far as they do.
fn asked<'a>(program: &'a Command, line: &[OsString]) -> &'a Command {
    line.iter().fold(program, |command, word| command.find_subcommand(word).unwrap_or(command))
}

/// How many keys were hit wrong where `meant` is meant; `None`: it is not.
fn wrong_keys(given: &str, meant: &str) -> Option<usize> {
    let (given, meant) = (given.trim_start_matches('-'), meant.trim_start_matches('-'));
    let most = given.chars().count().div_ceil(LETTERS);
    let wrong = strsim::osa_distance(given, meant);
    (wrong <= most || most > 1 && meant.starts_with(given)).then_some(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_is_a_few_keys_away_or_goes_on() {
        for (given, meant, wrong) in [
            ("nte", "net", Some(1)),
            ("vscok", "vsock", Some(1)),
            ("--sokcet", "--socket", Some(1)),
            ("--ports", "--port", Some(1)),
            ("--meta", "--metadata", Some(4)),
            ("--pcap", "--print-capabilities", None),
            ("nte", "send", None),
            ("ne", "replay", None),
        ] {
            assert_eq!(wrong_keys(given, meant), wrong, "{given}");
        }
    }
}
