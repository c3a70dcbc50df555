//! `zerowire net`'s back end in this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use zerowire_net::{Server, VmConfig, VmStats};
use zerowire_vhost::serve::Endpoint;

/// For counters to come to rest: how often, and after what pause, they are read.
const REST: (u32, Duration) = (50, Duration::from_millis(5));

/// The server of one VM.
pub struct BackEnd {
    server: Server,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl BackEnd {
    /// Starts it on a port as `--port` takes it.
    pub fn start(port: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("vm");
        let server = Server::start(vec![VmConfig::new("vm", Endpoint::Path(socket.clone()), port.parse()?)])?;
        Ok(Self { server, socket, _dir: dir })
    }

    /// Where a front end connects.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What it says now; it has one VM.
    pub fn now(&self) -> VmStats {
        self.server.stats().vms.swap_remove(0).vm
    }

    /// What it moved so far, when that changes no more: a frame can be there before it is counted.
    pub fn stats(&self) -> VmStats {
        let mut last = self.now();
        for _ in 0..REST.0 {
            std::thread::sleep(REST.1);
            let now = self.now();
            if format!("{now:?}") == format!("{last:?}") {
                break;
            }
            last = now;
        }
        last
    }

    /// The same for another program.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string(&self.stats()).context("statistics")
    }
}
