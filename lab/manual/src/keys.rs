//! The page about a configuration file: its keys are described by the options of the same names.

use clap::{Arg, Command};

use crate::roff;

/// Whether a table must have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It must.
    Required,
    /// Without the key the option on the command line counts.
    OrOption,
    /// Without the key this holds.
    Or(&'static str),
}

/// A key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name, which is that of an option, too.
    pub name: &'static str,
    /// What its value is: string, integer, …
    pub value: &'static str,
    /// Whether it must be there.
    pub need: Need,
    /// What the file has beyond the option, or other than it.
    pub note: &'static str,
}

/// A table of the file.
pub struct KeyTable<'a> {
    /// As in the file: `[vm.net]`.
    pub name: &'a str,
    /// What it is for.
    pub about: &'a str,
    /// The command with the options.
    pub command: &'a Command,
    /// All its keys.
    pub keys: &'a [Key],
}

/// The page `NAME.5`. `about` is a line, `text` paragraphs, `example` lines of a file.
///
/// # Errors
/// A key has no option: the text names it.
pub fn keys_page(
    name: &str,
    about: &str,
    version: &str,
    (text, example): (&[&str], &str),
    tables: &[KeyTable<'_>],
) -> Result<String, String> {
    let mut page = roff::title(name, 5, version);
    page.push_str(&roff::heading("NAME"));
    page.push_str(&format!("{name} \\- {}\n", roff::escaped(about)));
    page.push_str(&roff::heading("DESCRIPTION"));
    text.iter().for_each(|text| page.push_str(&roff::paragraph(text)));
    for table in tables {
        page.push_str(&roff::heading(table.name));
        page.push_str(&roff::paragraph(table.about));
        for key in table.keys {
            page.push_str(&key.item(table)?);
        }
    }
    page.push_str(&roff::heading("EXAMPLE"));
    page.push_str(&roff::verbatim(example.lines()));
    let commands = tables.iter().filter_map(|table| table.command.get_display_name());
    let mut see: Vec<String> = commands.map(|command| format!("{command}.1")).collect();
    see.dedup();
    page.push_str(&roff::see_also(&see));
    Ok(page)
}

impl Key {
    fn item(&self, table: &KeyTable<'_>) -> Result<String, String> {
        let option = table.command.get_arguments().find(|arg| arg.get_long() == Some(self.name));
        let option = option.ok_or_else(|| {
            format!("the key {} of {} has no option --{0} of its command", self.name, table.name)
        })?;
        // Sections that a text speaks of stand on the command's page.
        let page = table.command.get_display_name().unwrap_or_else(|| table.command.get_name());
        let help = help(option).replace("' below", &format!("' in {page}(1)"));
        // What an option says of itself is said below, of the key.
        let of_the_option = match self.need {
            Need::OrOption => " It holds for VMs that ",
            Need::Required | Need::Or(_) => " Default: ",
        };
        let help = help.split(of_the_option).next().unwrap_or(&help);
        let mut text = vec![sentence(help)];
        let values = possible_values(option);
        if !values.is_empty() {
            text.push(format!("One of: {}.", values.join("; ")));
        }
        text.extend((!self.note.is_empty()).then(|| self.note.to_owned()));
        let (name, value) = (self.name, self.value);
        text.push(match self.need {
            Need::Required => "Required.".to_owned(),
            Need::OrOption => format!("Without it --{name} of the command line holds."),
            Need::Or(what) => format!("Without it: {what}."),
        });
        Ok(roff::item(&format!("{name} = {value}"), &text.join("\n")))
    }
}

fn help(option: &Arg) -> String {
    let help = option.get_long_help().or_else(|| option.get_help());
    help.map(ToString::to_string).unwrap_or_default()
}

fn possible_values(option: &Arg) -> Vec<String> {
    let said = |value: &clap::builder::PossibleValue| match value.get_help() {
        Some(help) => format!("\"{}\", {help}", value.get_name()),
        None => format!("\"{}\"", value.get_name()),
    };
    option.get_possible_values().iter().filter(|value| !value.is_hide_set()).map(said).collect()
}

/// clap takes the point off the end of a comment.
fn sentence(text: &str) -> String {
    let end = if text.is_empty() || text.ends_with(['.', '?', '!']) { "" } else { "." };
    format!("{text}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { name: "mac", value: "string", need: Need::OrOption, note: "Six bytes." };

    fn page(keys: &[Key]) -> Result<String, String> {
        let mut command =
            Command::new("net").arg(Arg::new("mac").long("mac").help("The address, see 'Ports' below"));
        command.build();
        let tables = [KeyTable { name: "[vm.net]", about: "A device.", command: &command, keys }];
        keys_page("tool.toml", "a file", "1.2", (&["One file."], "[vm]\nname = 'a'"), &tables)
    }

    #[test]
    fn a_key_has_the_text_of_its_option() {
        let page = page(&[KEY]).expect("a page");
        let item = ".TP\n\\fBmac = string\\fR\nThe address, see 'Ports' in net(1).\nSix bytes.\nWithout it \\-\\-mac of the command line holds.\n";
        assert!(page.contains(item), "{page}");
        assert!(page.contains(".SH \"[vm.net]\"\n.PP\nA device.\n"), "{page}");
        assert!(page.contains(".nf\n[vm]\nname = 'a'\n.fi\n"), "{page}");
    }

    #[test]
    fn what_an_option_says_of_itself_is_not_said_of_keys() {
        let text = |need| {
            let help = "It. Default: one. It holds for VMs that lack it";
            let mut command = Command::new("net").arg(Arg::new("mac").long("mac").help(help));
            command.build();
            let table = KeyTable { name: "", about: "", command: &command, keys: &[] };
            Key { need, note: "", ..KEY }.item(&table).expect("an item")
        };
        assert!(text(Need::OrOption).contains("\nIt. Default: one.\nWithout it"));
        assert!(text(Need::Required).ends_with("\nIt.\nRequired.\n"));
        assert!(text(Need::Or("none")).ends_with("\nIt.\nWithout it: none.\n"));
    }

    #[test]
    fn a_key_without_an_option_is_named() {
        let said = page(&[Key { name: "cpu", ..KEY }]).expect_err("no option");
        assert_eq!(said, "the key cpu of [vm.net] has no option --cpu of its command");
    }
}
