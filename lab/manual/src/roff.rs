//! The little of roff that the pages need beside what clap_mangen writes.

/// `text` as one or more lines of a page, none of which is a request.
pub(crate) fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        match line.starts_with(['.', '\'']) {
            true => format!("\\&{line}"),
            false => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The first line of a page.
pub(crate) fn title(name: &str, section: u8, version: &str) -> String {
    format!(".TH {name} {section} \"\" \"zerowire {version}\" zerowire\n")
}

/// A section's heading.
pub(crate) fn heading(name: &str) -> String {
    format!(".SH \"{}\"\n", escaped(name))
}

/// The heading of a part of a section.
pub(crate) fn subheading(name: &str) -> String {
    format!(".SS \"{}\"\n", escaped(name))
}

/// A paragraph.
pub(crate) fn paragraph(text: &str) -> String {
    format!(".PP\n{}\n", escaped(text))
}

/// Lines that stay as they are.
pub(crate) fn verbatim<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    // An empty line would end the example in some readers.
    let lines = lines.into_iter().map(|line| match line {
        "" => "\\&\n".to_owned(),
        line => format!("{}\n", escaped(line)),
    });
    format!(".PP\n.nf\n{}.fi\n", lines.collect::<String>())
}

/// A term and what it means.
pub(crate) fn item(term: &str, text: &str) -> String {
    format!(".TP\n\\fB{}\\fR\n{}\n", escaped(term), escaped(text))
}

/// The section that names other pages.
pub(crate) fn see_also(pages: &[String]) -> String {
    let named = pages.iter().filter_map(|page| page.rsplit_once('.'));
    let named: Vec<_> =
        named.map(|(name, section)| format!("\\fB{}\\fR({section})", escaped(name))).collect();
    format!("{}{}\n", heading("SEE ALSO"), named.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_of_a_text_is_a_request() {
        assert_eq!(escaped(".a\n'b\n-c\\d"), "\\&.a\n\\&'b\n\\-c\\ed");
    }

    #[test]
    fn an_empty_line_of_an_example_is_kept() {
        assert_eq!(verbatim(["a", "", ".b"]), ".PP\n.nf\na\n\\&\n\\&.b\n.fi\n");
    }
}
