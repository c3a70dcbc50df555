use super::*;

#[test]
fn what_differs_is_named_and_can_be_written() {
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = temporary.path().to_owned();
    fs::write(folder.join("tool-gone.1"), "").expect("written");
    fs::write(folder.join("other.1"), "other's").expect("written");
    let owns = |name: &str| name.starts_with("tool");
    let wanted = Files::from([("tool.1".to_owned(), "a\nb\n".to_owned())]);

    let said = compare_or_write(&folder, owns, &wanted, false).expect_err("no page");
    assert!(said.contains("tool.1 is stale from line 1 on"), "{said}");
    fs::write(folder.join("tool.1"), "a\nc\n").expect("written");
    let said = compare_or_write(&folder, owns, &wanted, false).expect_err("another page");
    assert!(said.contains("from line 2 on (it has Some(\"c\"), wanted is Some(\"b\"))"), "{said}");
    fs::write(folder.join("tool.1"), "a\nb\n").expect("written");
    let said = compare_or_write(&folder, owns, &wanted, false).expect_err("a page too many");
    assert!(said.contains("tool-gone.1: nothing makes it any more"), "{said}");

    compare_or_write(&folder, owns, &wanted, true).expect("written");
    assert!(!folder.join("tool-gone.1").exists());
    assert_eq!(fs::read_to_string(folder.join("other.1")).expect("text"), "other's");
    let foreign = Files::from([("other.1".to_owned(), String::new())]);
    assert!(compare_or_write(&folder, owns, &foreign, true).expect_err("not its own").contains("other.1"));
}
