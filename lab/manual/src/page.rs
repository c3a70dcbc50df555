//! A page for each command of a program.

use clap::{Arg, Command};
use clap_mangen::Man;

use crate::{Files, roff};

/// The pages of a program: one for itself, and one for each command. `others` are pages that each
/// of them names at its end, such as `zerowire.toml.5`.
///
/// # Errors
/// clap_mangen can't write, or writes no text.
pub fn pages(program: Command, others: &[&str]) -> Result<Files, std::io::Error> {
    let version = program.get_version().unwrap_or_default().to_owned();
    let mut program = program.disable_help_subcommand(true).subcommand_value_name("COMMAND");
    program.build();
    let commands = program.get_subcommands().filter(|c| !c.is_hide_set()).cloned();
    let commands: Vec<Command> = commands.map(|c| c.subcommand_value_name("COMMAND")).collect();
    let mut pages = Files::new();
    let name = file_name(&program);
    let named = |page: &str| others.iter().filter(|other| **other != page).map(|&o| o.to_owned()).collect();
    for command in &commands {
        let page = file_name(command);
        let mut see: Vec<String> = named(&page);
        see.insert(0, name.clone());
        let below = match command.has_subcommands() {
            true => roff::heading("COMMANDS") + &commands_below(command, "")?,
            false => String::new(),
        };
        pages.insert(page, text(command, &below, &version, &see)?);
    }
    let mut see: Vec<String> = commands.iter().map(file_name).collect();
    see.extend::<Vec<String>>(named(&name));
    let mut below = Vec::new();
    Man::new(program.clone()).render_subcommands_section(&mut below)?;
    pages.insert(name, text(&program, &utf8(below)?, &version, &see)?);
    Ok(pages)
}

fn utf8(text: Vec<u8>) -> Result<String, std::io::Error> {
    String::from_utf8(text).map_err(std::io::Error::other)
}

/// All commands below this one, which have no pages of their own. Each has the options that it does
/// not share with the others. `above` are the words in front of their names.
fn commands_below(command: &Command, above: &str) -> Result<String, std::io::Error> {
    let mut text = String::new();
    for command in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        let name = format!("{above}{}", command.get_name());
        if command.has_subcommands() {
            text.push_str(&commands_below(command, &format!("{name} "))?);
            continue;
        }
        let is_shared = |arg: &Arg| arg.is_global_set() || arg.get_id() == "help";
        let command = command.clone().mut_args(|arg| if is_shared(&arg) { arg.hide(true) } else { arg });
        let man = Man::new(command.clone());
        let mut parts = [Vec::new(), Vec::new()];
        man.render_description_section(&mut parts[0])?;
        man.render_options_section(&mut parts[1])?;
        let [about, options] = parts.map(utf8);
        text.push_str(&roff::subheading(&name));
        text.push_str(unheaded(&about?));
        text.push_str(".PP\n");
        text.push_str(unheaded(&synopsis(&man, &command)?));
        text.push_str(unheaded(&options?));
    }
    Ok(text)
}

/// A section of clap_mangen's without its heading.
fn unheaded(section: &str) -> &str {
    let (_, heading_on) = section.split_once(".SH ").unwrap_or_default();
    heading_on.split_once('\n').map_or("", |(_, text)| text)
}

fn file_name(command: &Command) -> String {
    format!("{}.1", command.get_display_name().unwrap_or_else(|| command.get_name()))
}

/// A page. `below` are the commands of this one.
fn text(command: &Command, below: &str, version: &str, see: &[String]) -> Result<String, std::io::Error> {
    let man = Man::new(command.clone());
    let mut body = Vec::new();
    man.render_name_section(&mut body)?;
    body.extend(synopsis(&man, command)?.bytes());
    man.render_description_section(&mut body)?;
    man.render_options_section(&mut body)?;
    let body = utf8(body)?;
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let after = command.get_after_help().map(|help| sections(&help.to_string())).unwrap_or_default();
    Ok(format!("{}{body}{below}{after}{}", roff::title(name, 1, version), roff::see_also(see)))
}

/// The synopsis. clap_mangen leaves out the `--` in front of what a command hands on.
fn synopsis(man: &Man, command: &Command) -> Result<String, std::io::Error> {
    let mut text = Vec::new();
    man.render_synopsis_section(&mut text)?;
    let mut text = String::from_utf8(text).map_err(std::io::Error::other)?;
    for last in command.get_positionals().filter(|arg| arg.is_last_set()) {
        for name in last.get_value_names().into_iter().flatten() {
            let name = format!("<\\fI{name}\\fR>");
            text = text.replace(&name, &format!("\\fB\\-\\-\\fR {name}"));
        }
    }
    Ok(text)
}

/// What stands behind the options in `--help`: `Word: text` begins a section, and indented lines
/// stay as they are.
fn sections(help: &str) -> String {
    let mut page = String::new();
    let mut has_heading = false;
    let mut lines = help.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        if line.starts_with(' ') {
            let mut block = vec![line];
            while let Some(next) = lines.next_if(|next| next.is_empty() || next.starts_with(' ')) {
                block.push(next);
            }
            while block.last().is_some_and(|last| last.is_empty()) {
                block.pop();
            }
            page.push_str(&roff::verbatim(block));
            continue;
        }
        let (heading, text) = split_heading(line);
        if let Some(heading) = heading.or((!has_heading).then_some("notes")) {
            page.push_str(&roff::heading(&heading.to_uppercase()));
            has_heading = true;
        }
        if !text.is_empty() {
            page.push_str(&roff::paragraph(text));
        }
    }
    page
}

/// `Exit status: 0 …` is a heading of at most two words, and its text.
fn split_heading(line: &str) -> (Option<&str>, &str) {
    match line.split_once(':') {
        Some((words, text))
            if words.starts_with(|c: char| c.is_ascii_uppercase())
                && words.split(' ').count() <= 2
                && words.chars().all(|c| c.is_ascii_alphabetic() || c == ' ')
                && (text.is_empty() || text.starts_with(' ')) =>
        {
            (Some(words), text.trim())
        }
        _ => (None, line),
    }
}

#[cfg(test)]
mod tests;
