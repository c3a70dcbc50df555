//! Files mapped for sending.

use super::AreaError;
use super::map::Map;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
struct FileInner {
    file: File,
    /// None: the file is empty, and nothing can be mapped.
    map: Option<Map>,
}

/// A regular file, mapped read-only and shared with the page cache, so that the kernel can send its
/// pages without copying them. What is sent is what the file holds while it is being sent: a
/// program that changes the file meanwhile changes what goes out.
#[derive(Clone, Debug)]
pub struct MappedFile(Arc<FileInner>);

impl MappedFile {
    /// Opens and maps a file.
    ///
    /// # Errors
    /// [`AreaError::File`]: it can't be opened. [`AreaError::NotRegular`], [`AreaError::Map`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, AreaError> {
        let path = path.as_ref();
        let name = || path.display().to_string();
        let file = File::open(path).map_err(|cause| AreaError::File { path: name(), cause })?;
        Self::map(file, name)
    }

    /// Maps an open file. It must be open for reading.
    ///
    /// # Errors
    /// [`AreaError::NotRegular`], [`AreaError::File`] (its length can't be read),
    /// [`AreaError::Map`] (mmap(2)).
    pub fn new(file: File) -> Result<Self, AreaError> {
        Self::map(file, || "the file".to_owned())
    }

    fn map(file: File, name: impl Fn() -> String) -> Result<Self, AreaError> {
        let meta = file.metadata().map_err(|cause| AreaError::File { path: name(), cause })?;
        if !meta.is_file() {
            return Err(AreaError::NotRegular(name()));
        }
        let len = usize::try_from(meta.len())
            .map_err(|_| AreaError::File { path: name(), cause: io::ErrorKind::FileTooLarge.into() })?;
        let map = if len == 0 { None } else { Some(Map::file(&file, len)?) };
        Ok(Self(Arc::new(FileInner { file, map })))
    }

    /// Length of the file in bytes when it was mapped.
    pub fn len(&self) -> u64 {
        self.0.map.as_ref().map_or(0, |m| m.len() as u64)
    }

    /// Whether the file was empty when it was mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of the file.
    ///
    /// # Errors
    /// [`AreaError::PastEnd`]: the range ends behind the file, or before it begins.
    pub fn slice(&self, range: Range<u64>) -> Result<FileSlice, AreaError> {
        if range.start > range.end || range.end > self.len() {
            return Err(AreaError::PastEnd { from: range.start, to: range.end, len: self.len() });
        }
        let (offset, len) = (range.start as usize, (range.end - range.start) as usize);
        Ok(FileSlice { file: self.clone(), offset, len })
    }
}

/// A part of a mapped file.
#[derive(Clone, Debug)]
pub struct FileSlice {
    file: MappedFile,
    offset: usize,
    len: usize,
}

impl FileSlice {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes are mapped. For the kernel only: reading there after the file was truncated
    /// raises SIGBUS.
    pub fn as_ptr(&self) -> *const u8 {
        let base = self.file.0.map.as_ref().map_or(std::ptr::null_mut(), Map::base);
        base.wrapping_add(self.offset)
    }

    /// A part of it.
    ///
    /// # Panics
    /// When the range is not within it.
    pub fn part(&self, range: Range<usize>) -> FileSlice {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        Self { file: self.file.clone(), offset: self.offset + range.start, len: range.end - range.start }
    }

    /// Copies the bytes behind the first `from` of the slice into `out`, by pread(2).
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file has become shorter, or what pread(2) says.
    pub fn read_at(&self, from: usize, out: &mut [u8]) -> io::Result<()> {
        self.file.0.file.read_exact_at(out, (self.offset + from) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn slices_are_checked_and_read() {
        let mut t = tempfile::NamedTempFile::new().unwrap();
        t.write_all(b"0123456789").unwrap();
        let f = MappedFile::open(t.path()).unwrap();
        let s = f.slice(2..6).unwrap();
        let mut got = [0; 3];
        s.read_at(1, &mut got).unwrap();
        assert_eq!((&got, s.len(), f.len()), (b"345", 4, 10));
        assert!(matches!(f.slice(5..11), Err(AreaError::PastEnd { .. })));
        t.as_file().set_len(3).unwrap();
        assert!(s.read_at(0, &mut got).is_err(), "a truncated file is an error, not a signal");
    }

    #[test]
    fn only_regular_files() {
        assert!(matches!(MappedFile::open("/dev/null"), Err(AreaError::NotRegular(_))));
        assert!(matches!(MappedFile::open("/nonexistent"), Err(AreaError::File { .. })));
        let t = tempfile::NamedTempFile::new().unwrap();
        let f = MappedFile::new(t.reopen().unwrap()).unwrap();
        assert!(f.is_empty() && f.slice(0..0).unwrap().is_empty());
    }
}
