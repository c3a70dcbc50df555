//! Links of the pages lead somewhere: to a file of the tree, and to a heading of a page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::install::root;

/// Pages with their text.
type Pages = BTreeMap<PathBuf, String>;

/// The folders with pages, without that of the book.
const FOLDERS: [&str; 4] = ["", "docs", "measurements", "measurements/data"];

/// The pages of folders.
fn pages(root: &Path, folders: &[&str]) -> Pages {
    let files = folders.iter().flat_map(|folder| root.join(folder).read_dir().expect("a folder"));
    let files = files.map(|entry| entry.expect("an entry").path());
    // The book has links to the pages that lie elsewhere.
    let pages = files.filter(|path| path.extension().is_some_and(|e| e == "md") && !path.is_symlink());
    pages.map(|path| (path.clone(), std::fs::read_to_string(&path).expect("a page"))).collect()
}

/// The root of the tree, and its pages.
fn tree() -> (PathBuf, Pages) {
    let root = root();
    let pages = pages(&root, &[&FOLDERS[..], &["book/src"]].concat());
    (root, pages)
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

/// Where a link leads by its words: symbolic links on the way count for nothing, as in a browser.
fn leads(page: &Path, file: &str) -> PathBuf {
    let mut target = page.parent().expect("a folder").to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => assert!(target.pop(), "{}: {file}", page.display()),
            part => target.push(part),
        }
    }
    target
}

/// The links to what is not below `root`, or has no such heading: page and link.
fn dead_links(root: &Path, pages: &Pages) -> Vec<(PathBuf, String)> {
    let mut dead = Vec::new();
    let mut checked = 0;
    for (path, page) in pages {
        for link in links(page).filter(|link| !link.contains("://")) {
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { leads(path, file) };
            let is_alive = match pages.get(&target) {
                Some(page) => anchor.is_empty() || anchors(page).contains(anchor),
                None => anchor.is_empty() && target.starts_with(root) && target.exists(),
            };
            if !is_alive {
                dead.push((path.strip_prefix(root).expect("below").to_owned(), link.to_owned()));
            }
        }
    }
    assert!(checked > 100, "only {checked} links were found");
    dead
}

#[test]
fn links_lead_somewhere() {
    let (root, pages) = tree();
    assert!(pages.len() > 20, "only {} pages in {}", pages.len(), root.display());
    assert_eq!(dead_links(&root, &pages), []);
}

/// The pages that were installed in `folder` link to each other, and to what lies there. The
/// sources do not.
pub fn installed_links_lead_somewhere(folder: &Path) {
    let folder = folder.canonicalize().expect("the pages");
    let is_source = |(page, link): &(PathBuf, String)| {
        let target = leads(page, link.split('#').next().expect("a part"));
        ["ARCHITECTURE.md", "CONTRIBUTING.md", "crates", "lab"]
            .iter()
            .any(|source| target.starts_with(source))
    };
    let dead = dead_links(&folder, &pages(&folder, &FOLDERS)).into_iter();
    assert_eq!(dead.filter(|link| !is_source(link)).collect::<Vec<_>>(), []);
}

/// The book has each page once, and its links to the pages lie beside its list.
#[test]
fn the_book_has_each_page() {
    let (root, pages) = tree();
    let source = root.join("book/src");
    let summary = source.join("SUMMARY.md");
    let list: Vec<&str> = links(&pages[&summary]).collect();
    let listed: BTreeSet<PathBuf> = list
        .iter()
        .map(|link| source.join(link).canonicalize().unwrap_or_else(|e| panic!("SUMMARY.md: {link}: {e}")))
        .collect();
    assert_eq!(listed.len(), list.len(), "SUMMARY.md lists a page twice");
    let missing: Vec<_> = pages.keys().filter(|page| **page != summary && !listed.contains(*page)).collect();
    assert!(missing.is_empty(), "SUMMARY.md does not list {missing:?}");
    // What a page links to beside pages must be there in the book as well.
    for (path, page) in &pages {
        let there = source.join(path.strip_prefix(&root).expect("in the tree"));
        let outside = links(page).filter(|link| !link.contains("://") && !link.starts_with('#'));
        for link in outside.filter(|_| *path != summary) {
            let file = link.split('#').next().expect("a part");
            let place = leads(&there, file);
            let is_there = place.starts_with(&source) && place.exists();
            assert!(is_there, "{}: {link} is not in the book: link to it in book/src", path.display());
        }
    }
}

#[test]
fn the_first_page_is_short() {
    let (root, pages) = tree();
    let lines = pages[&root.join("README.md")].lines().count();
    assert!(lines <= 120, "README.md has {lines} lines; move some to docs/");
}
