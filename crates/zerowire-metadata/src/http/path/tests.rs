use super::*;

#[test]
fn targets() {
    let path = |parts: &[&str]| Path::Segments(parts.iter().map(|part| (*part).to_owned()).collect());
    for (target, expected) in [
        ("/", path(&[])),
        ("", path(&[])),
        ("//a///b/", path(&["a", "b"])),
        ("/a%20b/%41", path(&["a b", "A"])),
        ("/a%2Fb", path(&["a/b"])),
        ("/a/../b/.", path(&["a", "..", "b", "."])),
        ("/a?x=/b", path(&["a"])),
        ("http://169.254.169.254/a", path(&["a"])),
        ("http://169.254.169.254", path(&[])),
        ("http://h?x", path(&[])),
        ("/http://h/a", path(&["http:", "h", "a"])),
        ("*", Path::Nowhere),
        ("/%ff", Path::Nowhere),
        ("/%", Path::Malformed),
        ("/%4", Path::Malformed),
        ("/%zz", Path::Malformed),
        ("/%ff/%", Path::Malformed),
    ] {
        assert_eq!(Path::parse(target), expected, "{target}");
    }
}
