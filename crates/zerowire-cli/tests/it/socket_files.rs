//! Files at the paths of sockets that are not the sockets' own. Run as root.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use serde_json::json;

use crate::support::control::Controlled;
use crate::support::in_netns;
use crate::support::modes::{Mode, in_both_modes};

in_both_modes! {
    what_took_the_place_of_a_socket_stays
    what_took_the_place_of_a_vsock_socket_stays
}

/// A file in place of the one at `path`.
fn replace_by_file(path: &Path) {
    std::fs::remove_file(path).expect("it is there");
    std::fs::write(path, "kept").expect("another file");
}

fn is_kept(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text == "kept")
}

fn what_took_the_place_of_a_socket_stays(mode: Mode) {
    in_netns(move || {
        let server = Controlled::start(mode);
        for name in ["zwgone", "zwmoved", "zwend", "zwnext"] {
            server.add(name);
        }
        let path = |name| server.path(name);
        replace_by_file(&path("zwgone"));
        assert_eq!(server.ask("DELETE", "/vms/zwgone", "").0, 204);
        assert!(is_kept(&path("zwgone")), "removed with the VM");
        replace_by_file(&path("zwmoved"));
        let patch = json!({ "socket": path("zwelse") }).to_string();
        let (status, text) = server.ask("PATCH", "/vms/zwmoved?reconnect", &patch);
        assert_eq!(status, 200, "{text}");
        assert!(is_kept(&path("zwmoved")), "removed with the device");
        replace_by_file(&path("zwend"));
        // Another program.
        std::fs::remove_file(path("zwnext")).expect("it is there");
        let _next = UnixListener::bind(path("zwnext")).expect("a socket");
        replace_by_file(&server.control());
        let dir = server.dir;
        server.program.stop();
        assert!(is_kept(&dir.path().join("zwend")) && is_kept(&dir.path().join("control")));
        UnixStream::connect(dir.path().join("zwnext")).expect("it listens");
        assert!(!dir.path().join("zwelse").exists());
    });
}

fn what_took_the_place_of_a_vsock_socket_stays(mode: Mode) {
    let server = Controlled::start_vsock(mode);
    let (socket, uds) = (server.path("s"), server.path("u"));
    let body = json!({ "socket": socket, "cid": 3, "uds": uds }).to_string();
    server.put("a", &body);
    let paths = ["s", "u", "u.seqpacket", "u.map"].map(|name| server.path(name));
    paths.iter().for_each(|path| replace_by_file(path));
    let _dir = server.dir;
    server.program.stop();
    assert!(paths.iter().all(|path| is_kept(path)));
}
