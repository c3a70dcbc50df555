//! Completions for shells.

use clap::Command;
use clap_complete::aot::{Generator, Shell, generate};

use crate::Files;

/// The completions of a program for bash, zsh and fish.
///
/// # Errors
/// clap_complete writes no text.
pub fn completions(program: Command) -> Result<Files, std::string::FromUtf8Error> {
    let name = program.get_name().to_owned();
    let one = |shell: Shell| {
        let mut text = Vec::new();
        generate(shell, &mut program.clone(), &name, &mut text);
        // Lines that say nothing but spaces would be changed by editors.
        let text = String::from_utf8(text)?;
        let lines: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        Ok((shell.file_name(&name), lines))
    };
    [Shell::Bash, Shell::Zsh, Shell::Fish].into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn each_shell_completes_an_option_by_its_name() {
        let program = Command::new("tool").arg(Arg::new("socket").long("socket").value_name("PATH"));
        let files = completions(program).expect("text");
        assert_eq!(files.keys().collect::<Vec<_>>(), ["_tool", "tool.bash", "tool.fish"]);
        for (name, text) in files {
            assert!(text.contains("socket") && !text.contains(" \n"), "{name}: {text}");
        }
    }
}
