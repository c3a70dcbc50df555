use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::net::SocketType;

use super::super::listen::{Endpoint, Listener, bind_unix};
use super::*;

const FULL: SocketAccess = SocketAccess { owner: Some(123), group: Some(456), mode: Some(0o666) };

fn rights(path: &Path) -> (u32, u32, u32) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    (meta.mode() & 0o7777, meta.uid(), meta.gid())
}

/// A folder with a file whose rights nobody may change.
fn folder() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "").unwrap();
    std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
    let path = dir.path().join("s");
    (dir, path, victim)
}

#[test]
fn a_socket_has_the_rights_that_were_asked_for_whatever_the_umask() {
    let (_dir, path, _) = folder();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let none = SocketAccess::default();
    for (access, want) in [
        (none, (0o600, uid, gid)),
        (SocketAccess { mode: Some(0o666), ..none }, (0o666, uid, gid)),
        (SocketAccess { mode: Some(0), ..none }, (0, uid, gid)),
        (SocketAccess { group: Some(456), ..none }, (0o660, uid, 456)),
        (SocketAccess { owner: Some(123), ..none }, (0o600, 123, gid)),
        (FULL, (0o666, 123, 456)),
    ] {
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let bound = bind_unix(&path, kind, &access).unwrap();
            assert_eq!(rights(&path), want, "{access:?}");
            drop(bound);
            assert!(!path.exists());
        }
    }
}

#[test]
fn a_file_in_the_sockets_place_keeps_its_rights() {
    let (dir, path, victim) = folder();
    let moved = dir.path().join("moved");
    let hard = |at: &Path| std::fs::hard_link(&victim, at).unwrap();
    let soft = |at: &Path| std::os::unix::fs::symlink(&victim, at).unwrap();
    for put in [&hard as &dyn Fn(&Path), &soft] {
        let socket = UnixListener::bind(&path).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        put(&path);
        assert!(matches!(file_at(&path), Err(ListenError::Replaced(p)) if p == path));
        FULL.grant(&bound_file(&socket.into(), &path).unwrap(), &path).unwrap();
        assert_eq!(rights(&moved), (0o666, 123, 456), "the socket itself has them");
        assert_eq!(rights(&victim).0, 0o600);
        assert_eq!(rights(&victim).1, rustix::process::geteuid().as_raw());
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&moved).unwrap();
    }
}

#[test]
fn without_the_capability_only_a_socket_of_this_user_with_one_name_is_taken() {
    let (dir, path, _) = folder();
    let _socket = UnixListener::bind(&path).unwrap();
    file_at(&path).unwrap();
    std::fs::hard_link(&path, dir.path().join("other")).unwrap();
    assert!(file_at(&path).is_err(), "two names");
    std::fs::remove_file(dir.path().join("other")).unwrap();
    std::os::unix::fs::chown(&path, Some(123), None).unwrap();
    assert!(file_at(&path).is_err(), "somebody else's");
    std::fs::remove_file(&path).unwrap();
    assert!(file_at(&path).is_err(), "nothing there");
}

/// Somebody swaps the socket for a link to another file, as fast as possible. Meanwhile it is
/// made again and again, with the rights that its owner gave the one before.
#[test]
fn no_swap_of_a_socket_that_is_made_again_changes_another_file() {
    let (dir, path, victim) = folder();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let mut listener = Listener::new(&Endpoint::Path(path.clone()), &SocketAccess::default()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4777)).unwrap();
    let done = AtomicBool::new(false);
    let mut again = 0;
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if renameat_with(CWD, &path, CWD, &link, RenameFlags::EXCHANGE).is_ok() {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                    let _ = std::fs::remove_file(&path);
                    let _ = std::fs::remove_file(&link);
                    let _ = std::os::unix::fs::symlink(&victim, &link);
                }
            }
        });
        for _ in 0..500_000 {
            listener.shut().unwrap();
            again += u32::from(listener.reopen().is_ok());
            if again == 1000 {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(again > 0, "it was never made again");
    assert_eq!(rights(&victim).0, 0o600);
}
