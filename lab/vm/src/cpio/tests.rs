use super::*;

#[test]
fn an_entry_has_the_layout_of_newc() {
    let mut archive = Archive::new();
    archive.file("/a/b", b"hello".to_vec(), true);
    let bytes = archive.to_bytes();
    let text = String::from_utf8_lossy(&bytes);
    // The parent comes first: inode 1, a folder, name "a" with NUL.
    assert!(text.starts_with("07070100000001000041ed"));
    let second = text[6..].find("070701").unwrap() + 6;
    assert_eq!(second % ALIGN, 0);
    let field = |n: usize| u32::from_str_radix(&text[second + 6 + 8 * n..][..8], 16).unwrap();
    assert_eq!(field(0), 2, "inode");
    assert_eq!(field(1), 0o100_755, "mode");
    assert_eq!(field(6), 5, "file size");
    assert_eq!(field(11), 4, "name size");
    let name = second + 110;
    assert_eq!(&bytes[name..name + 4], b"a/b\0");
    let data = (name + 4).next_multiple_of(ALIGN);
    assert_eq!(&bytes[data..data + 5], b"hello");
    assert!(text.contains("TRAILER!!!"));
    assert_eq!(bytes.len() % ALIGN, 0);
}

#[test]
fn the_same_contents_give_the_same_bytes_in_any_order() {
    let mut one = Archive::new();
    one.file("/x/1", vec![1], false);
    one.folder("/y");
    let mut two = Archive::new();
    two.folder("/y");
    two.file("/x/1", vec![1], false);
    assert_eq!(one.to_bytes(), two.to_bytes());
}

#[test]
fn a_device_keeps_its_numbers() {
    let mut archive = Archive::new();
    archive.character_device("/dev/console", 5, 1);
    assert!(archive.contains("/dev/console"));
    assert!(archive.contains("dev"));
    let text = String::from_utf8(archive.to_bytes()).unwrap();
    assert!(text.contains("0000000500000001"));
}
