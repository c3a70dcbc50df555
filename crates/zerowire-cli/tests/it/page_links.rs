//! Links of the pages lead somewhere: to a file of the tree, and to a heading of a page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The root of the tree, and its pages with their text.
fn pages() -> (PathBuf, BTreeMap<PathBuf, String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree");
    let folders = ["", "docs", "measurements", "measurements/data"].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| folder.read_dir().expect("a folder"));
    let files = files.map(|entry| entry.expect("an entry").path());
    let pages = files.filter(|path| path.extension().is_some_and(|e| e == "md"));
    let pages = pages.map(|path| (path.clone(), std::fs::read_to_string(&path).expect("a page")));
    (root.clone(), pages.collect())
}

/// The lines of a page outside of blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchors that a site for repositories makes of headings: in lower case, without punctuation,
/// with a hyphen for each space, and a number where one was there before.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let headings = prose(page).filter_map(|line| line.strip_prefix('#'));
    for heading in headings.map(|h| h.trim_start_matches('#').trim()) {
        let heading = heading.to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let further = (1..).map(|n| format!("{anchor}-{n}"));
        let free = std::iter::once(anchor.clone()).chain(further).find(|a| !seen.contains(a));
        seen.extend(free);
    }
    seen
}

/// What a page links to.
fn links(page: &str) -> impl Iterator<Item = &str> {
    prose(page).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next())
}

#[test]
fn links_lead_somewhere() {
    let (root, pages) = pages();
    assert!(pages.len() > 20, "only {} pages in {}", pages.len(), root.display());
    let mut dead = Vec::new();
    let mut checked = 0;
    for (path, page) in &pages {
        for link in links(page).filter(|link| !link.contains("://")) {
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a folder").join(file),
            };
            let lives = match target.canonicalize() {
                Ok(target) if anchor.is_empty() => target.starts_with(&root),
                Ok(target) => pages.get(&target).is_some_and(|page| anchors(page).contains(anchor)),
                Err(_) => false,
            };
            if !lives {
                dead.push(format!("{}: {link}", path.strip_prefix(&root).expect("in the tree").display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    assert!(checked > 100, "only {checked} links were found");
}

#[test]
fn the_first_page_is_short() {
    let (root, pages) = pages();
    let lines = pages[&root.join("README.md")].lines().count();
    assert!(lines <= 120, "README.md has {lines} lines; move some to docs/");
}
