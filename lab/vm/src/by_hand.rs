//! A guest that is started by hand: `vmlinuz` and `initrd` in a folder, for QEMU's `-kernel` and
//! `-initrd`. Its first process gives a shell on the serial line.
//!
//! The initial RAM disk is the tests' one with a second archive behind it. The kernel unpacks one
//! after the other, so the second one's `/init` takes the place of the first one's (Linux
//! `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::path::Path;

use anyhow::{Context, Result};

use crate::assets::Kernel;
use crate::cpio::Archive;
use crate::lab::Lab;

/// The first process, see the file itself.
const INIT: &str = include_str!("by_hand.sh");

/// The shell's prompt.
pub const PROMPT: &str = "guest# ";

/// Writes both files into `folder`, which is made if it does not exist.
///
/// # Errors
/// The kernel is not in the cache, or a file can't be written.
pub fn write(lab: &Lab, kernel: Kernel, folder: &Path) -> Result<()> {
    let files = lab.assets.kernel(kernel)?;
    let initrd = lab.initrd(kernel)?;
    let mut bytes = std::fs::read(&initrd).with_context(|| format!("read {}", initrd.display()))?;
    let mut own = Archive::new();
    own.file("/init", INIT.into(), true);
    bytes.extend_from_slice(&own.to_bytes());
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    };
    put("initrd", &bytes)?;
    let image = std::fs::read(&files.image).with_context(|| format!("read {}", files.image.display()))?;
    put("vmlinuz", &image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shells_prompt_is_the_one_that_is_waited_for() {
        assert!(INIT.contains(&format!("PS1='{PROMPT}'")));
    }
}
