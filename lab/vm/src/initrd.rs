//! The guest's root file system: busybox, a few programs, the modules, the first process.

use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::assets::KernelFiles;
use crate::cpio::Archive;
use crate::lab::remove_older;
use crate::modules::ModuleTree;

/// The first process, see the file itself.
const INIT: &str = include_str!("init.sh");

/// What the guest's kernel loads at boot, beside what these need. 7.x has the
/// virtio bus built in, 6.1 has it as modules.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "virtio_balloon",
    "vmw_vsock_virtio_transport",
    "vsock_loopback",
    "veth",
    "uio_pci_generic",
    "tls",
    // What it encrypts with; 7.x has the third one built in.
    "gcm",
    "ctr",
    "ghash_generic",
];

/// Programs that are copied with their libraries: the guest has no package manager.
const PROGRAMS: &[&str] = &["busybox", "iperf3", "curl"];

/// Folders that the first process and the programs expect.
const FOLDERS: &[&str] =
    &["/proc", "/sys", "/dev", "/tmp", "/run", "/root", "/etc", "/var", "/bin", "/usr/bin"];

/// Builds the archive for a kernel. `extra` programs go to `/bin` under their own
/// file names.
///
/// # Errors
/// A program or a module is missing; the message says which.
pub fn build(kernel: &KernelFiles, extra: &[PathBuf]) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    for folder in FOLDERS {
        archive.folder(folder);
    }
    archive.character_device("/dev/console", 5, 1);
    archive.character_device("/dev/null", 1, 3);
    archive.file("/init", INIT.into(), true);
    for program in PROGRAMS {
        add_program(&mut archive, &find_program(program)?)?;
    }
    for program in extra {
        add_program(&mut archive, program)?;
    }
    let mut order = String::new();
    for module in ModuleTree::scan(&kernel.modules)?.resolve(MODULES)? {
        order.push_str(&module.name);
        order.push('\n');
        archive.file(&format!("/modules/{}.ko", module.name), module.object, false);
    }
    archive.file("/modules/order", order.into(), false);
    Ok(archive.to_bytes())
}

/// A 64-bit digest that names cached files by their inputs. It guards against
/// stale files, not against forgery.
pub fn digest(parts: &[&[u8]]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    for part in parts {
        hasher.write_usize(part.len());
        hasher.write(part);
    }
    hasher.finish()
}

/// The path of a program on the host.
///
/// # Errors
/// It is in none of the usual folders.
pub fn find_program(name: &str) -> Result<PathBuf> {
    ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("no program {name}: run `scripts/install.sh vm`"))
}

fn add_program(archive: &mut Archive, path: &Path) -> Result<()> {
    let name = path.file_name().with_context(|| format!("{} is no file", path.display()))?;
    archive.file(&format!("/bin/{}", name.to_string_lossy()), without_debug_info(path)?, true);
    for library in libraries(path)? {
        if !archive.contains(&library) {
            let data = std::fs::read(&library).with_context(|| format!("read {library}"))?;
            archive.file(&library, data, true);
        }
    }
    Ok(())
}

/// A program without what the guest's memory is too small for: the archive is in it twice while it
/// is unpacked. Without strip(1), which comes with each C compiler, the program goes in as it is.
fn without_debug_info(path: &Path) -> Result<Vec<u8>> {
    let short = tempfile::NamedTempFile::new().context("create a temporary file")?;
    let strip = Command::new("strip").arg("--strip-debug").arg("-o").arg(short.path()).arg(path).output();
    let read = match strip {
        Ok(output) if output.status.success() => short.path(),
        _ => path,
    };
    std::fs::read(read).with_context(|| format!("read {}", read.display()))
}

/// The libraries of a program as `ldd` finds them; none for a static one.
///
/// # Errors
/// It lacks one, or there is no `ldd`.
pub fn libraries(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output().context("can't start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("not a dynamic executable") {
            return Ok(Vec::new());
        }
        bail!("ldd {}: {error}", program.display());
    }
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("{} lacks a library: {}", program.display(), line.trim());
    }
    Ok(parse_ldd(&text))
}

/// Lines are `name => /path (0xaddress)` or `/path (0xaddress)`; the kernel's own
/// `linux-vdso.so.1 (0xaddress)` has no path.
fn parse_ldd(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let line = line.rsplit("=> ").next()?.trim();
            let (path, _) = line.split_once(" (0x")?;
            path.starts_with('/').then(|| path.to_owned())
        })
        .collect()
}

/// Builds the archive and stores it under a name made of the label and its digest.
///
/// # Errors
/// It can't be built or written.
pub fn store(work_dir: &Path, label: &str, kernel: &KernelFiles, extra: &[PathBuf]) -> Result<PathBuf> {
    let bytes = build(kernel, extra)?;
    let path = work_dir.join(format!("initrd-{label}-{:016x}.img", digest(&[&bytes])));
    if !path.exists() {
        remove_older(work_dir, &format!("initrd-{label}-"), ".img")?;
        // Written beside and renamed: another run may look for it at the same time.
        let part = path.with_extension(format!("part.{}", std::process::id()));
        std::fs::write(&part, &bytes).with_context(|| format!("write {}", part.display()))?;
        std::fs::rename(&part, &path).with_context(|| format!("rename {}", part.display()))?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_output_gives_paths_only() {
        let text = "\tlinux-vdso.so.1 (0x00007ffe)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n";
        assert_eq!(parse_ldd(text), ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn the_digest_tells_part_borders_apart() {
        assert_eq!(digest(&[b"ab", b"c"]), digest(&[b"ab", b"c"]));
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
    }
}
