//! Programs that are measured in turns, and the one that the others are set beside.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;

use crate::wrong::wrong;

/// A program, and how tables name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedProgram {
    /// Its variants' names begin with this word.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
}

impl FromStr for NamedProgram {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty());
        let (name, path) = parts.ok_or_else(|| format!("--program {text}: give NAME=PATH"))?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !name.chars().all(is_word) || ["floor", "bare", "copy"].contains(&name) {
            return Err(format!(
                "--program {text}: the name '{name}' is not free: take letters, digits, '.', '_' and '-', and not floor, bare or copy"
            ));
        }
        Ok(Self { name: name.to_owned(), path: path.into() })
    }
}

/// A number of `--gate`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=1000.0).contains(percent));
    percent.ok_or_else(|| "choose 0 to 1000 percent".to_owned())
}

/// Refuses two of one name, and files that are not there.
pub(crate) fn verify(programs: &[NamedProgram]) -> Result<()> {
    for (index, NamedProgram { name, path }) in programs.iter().enumerate() {
        if programs[..index].iter().any(|other| other.name == *name) {
            wrong!("--program {name}={}: another program has this name", path.display());
        }
        if !path.is_file() {
            wrong!("--program {name}={}: there is no such file", path.display());
        }
    }
    Ok(())
}

/// The variant of the first program that `variant`, of another one, is set beside.
pub(crate) fn before(programs: &[NamedProgram], variant: &str) -> Option<String> {
    let (first, others) = programs.split_first()?;
    let (name, rest) = variant.split_at(variant.find([' ', ',']).unwrap_or(variant.len()));
    others.iter().any(|other| other.name == name).then(|| format!("{}{rest}", first.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(texts: &[&str]) -> Vec<NamedProgram> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_program_is_a_name_and_a_path() {
        let [program] = &programs(&["old-1.0=/a/b=c"])[..] else { panic!("one program") };
        assert_eq!((program.name.as_str(), program.path.to_str()), ("old-1.0", Some("/a/b=c")));
        for (text, words) in [
            ("/a/b", "give NAME=PATH"),
            ("=/a", "give NAME=PATH"),
            ("a=", "give NAME=PATH"),
            ("a b=/a", "'a b' is not free"),
            ("floor=/a", "'floor' is not free"),
        ] {
            let error = text.parse::<NamedProgram>().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn names_are_told_apart_and_files_must_be_there() {
        let refused = |texts: &[&str]| verify(&programs(texts)).unwrap_err().to_string();
        assert!(refused(&["a=/proc/self/exe", "a=/proc/self/exe"]).contains("another program"));
        assert!(refused(&["a=/none"]).contains("a=/none: there is no such file"));
        verify(&programs(&["a=/proc/self/exe", "b=/proc/self/exe"])).unwrap();
    }

    #[test]
    fn a_variant_is_set_beside_the_same_one_of_the_first_program() {
        let programs = programs(&["before=/a", "after=/b", "later=/c"]);
        let before = |variant| before(&programs, variant);
        assert_eq!(before("after").as_deref(), Some("before"));
        assert_eq!(before("later --path copy").as_deref(), Some("before --path copy"));
        assert_eq!(before("after, guest sleeps").as_deref(), Some("before, guest sleeps"));
        assert_eq!(before("before"), None);
        assert_eq!(before("floor"), None);
    }
}
