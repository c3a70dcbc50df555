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
mod tests;
