//! Writes cpio archives in the "newc" form, which the kernel unpacks as its first
//! root file system (Linux `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeMap;

/// File type bits of `st_mode` (`S_IFMT` values, Linux `include/uapi/linux/stat.h`).
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;

/// Headers, names and file contents start at multiples of this.
const ALIGN: usize = 4;

#[derive(Debug)]
struct CpioEntry {
    mode: u32,
    device: (u32, u32),
    data: Vec<u8>,
}

/// An archive under construction. Paths are absolute; missing parent folders are
/// added. Entries are written in the order of their names, so the same contents
/// give the same bytes.
#[derive(Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, CpioEntry>,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder with mode 755.
    pub fn folder(&mut self, path: &str) {
        self.put(path, DIRECTORY | 0o755, (0, 0), Vec::new());
    }

    /// Adds a regular file; replaces an earlier one of the same name.
    pub fn file(&mut self, path: &str, data: Vec<u8>, executable: bool) {
        let permissions = if executable { 0o755 } else { 0o644 };
        self.put(path, REGULAR | permissions, (0, 0), data);
    }

    /// Adds a character device node with mode 600.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.put(path, CHARACTER | 0o600, (major, minor), Vec::new());
    }

    /// Whether a path is there.
    pub fn contains(&self, path: &str) -> bool {
        self.entries.contains_key(path.trim_start_matches('/'))
    }

    fn put(&mut self, path: &str, mode: u32, device: (u32, u32), data: Vec<u8>) {
        let path = path.trim_start_matches('/');
        for (slash, _) in path.match_indices('/') {
            let parent = &path[..slash];
            if !self.entries.contains_key(parent) {
                let folder = CpioEntry { mode: DIRECTORY | 0o755, device: (0, 0), data: Vec::new() };
                self.entries.insert(parent.to_owned(), folder);
            }
        }
        self.entries.insert(path.to_owned(), CpioEntry { mode, device, data });
    }

    /// The archive's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (inode, (name, entry)) in (1..).zip(&self.entries) {
            write_entry(&mut out, inode, name, entry);
        }
        let end = CpioEntry { mode: 0, device: (0, 0), data: Vec::new() };
        write_entry(&mut out, 0, "TRAILER!!!", &end);
        out
    }
}

fn write_entry(out: &mut Vec<u8>, inode: u32, name: &str, entry: &CpioEntry) {
    let length = |n: usize| u32::try_from(n).expect("files of an initial RAM disk are below 4 GiB");
    let (major, minor) = entry.device;
    out.extend_from_slice(b"070701");
    let fields = [
        inode,
        entry.mode,
        0, // owner
        0, // group
        1, // links
        0, // time
        length(entry.data.len()),
        0, // device that holds the file: major
        0, // and minor
        major,
        minor,
        length(name.len() + 1), // with its final NUL
        0,                      // checksum, unused in this form
    ];
    for field in fields {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(&entry.data);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

#[cfg(test)]
mod tests {
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
}
