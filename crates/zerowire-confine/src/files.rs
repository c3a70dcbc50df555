//! An empty root.
//!
//! A file system that can't be written and has nothing in it takes the place of the root, and the
//! old one is detached with all that was mounted in it (pivot_root(2), "pivot_root(".", ".")").

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{chdir, pivot_root};

/// Folders of which every system has one.
const PLACES: [&str; 4] = ["/proc", "/dev", "/tmp", "/usr"];

/// Leaves all files. The mount namespace must be the process's own.
pub(crate) fn leave() -> Result<(), String> {
    let failed = |what: &'static str| move |e: Errno| format!("{what}: {e}");
    // Nothing that is done here shows elsewhere.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| format!("the root is no mount point, as after chroot: {e}"))?;
    let place = PLACES.iter().find(|place| std::path::Path::new(place).is_dir());
    let place = *place.ok_or_else(|| format!("none of {} is there", PLACES.join(", ")))?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", place, "tmpfs", flags, c"size=4k,nr_inodes=2,mode=0555").map_err(failed("tmpfs"))?;
    chdir(place).map_err(failed("chdir"))?;
    pivot_root(".", ".").map_err(failed("pivot_root, which a root in memory does not allow"))?;
    unmount(".", UnmountFlags::DETACH).map_err(failed("umount"))?;
    chdir("/").map_err(failed("chdir"))
}
