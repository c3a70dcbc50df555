//! The metadata detour of one VM.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use zerowire_metadata::{Config, MAX_TREE_BYTES, MetadataService, MetadataTree, TokenPolicy};
use zerowire_vhost::files;
use zerowire_vhost::host::RingClient;

use crate::transmit::Detour;
use crate::worker::WorkerCommand;

/// Where a VM's metadata come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataSource {
    /// A JSON file.
    pub file: PathBuf,
    /// Whether requests need a session token.
    pub tokens: TokenPolicy,
}

impl MetadataSource {
    /// Reads the file.
    pub fn load(&self) -> Result<Arc<MetadataTree>, String> {
        self.parse(&self.text()?)
    }

    /// The tree of a text that was read from the file.
    ///
    /// # Errors
    /// What the user reads.
    pub fn parse(&self, text: &str) -> Result<Arc<MetadataTree>, String> {
        MetadataTree::from_json_str(text)
            .map(Arc::new)
            .map_err(|e| format!("metadata file {}: {e}", self.file.display()))
    }

    /// What is in the file, which need not be JSON.
    ///
    /// # Errors
    /// What the user reads.
    pub fn text(&self) -> Result<String, String> {
        let text = files::read_text(&self.file, MAX_TREE_BYTES);
        text.map_err(|e| format!("metadata file {} can't be read: {e}", self.file.display()))
    }
}

/// Frames on their way from other workers to the service at most; further ones are lost, as on a
/// wire.
const MAX_FORWARDED: usize = 256;

/// What a worker does with frames for the service: the first worker of a VM runs the service, the
/// others send it their frames.
pub(crate) enum MetadataDetour {
    Service(Box<Service>),
    Forward { to: RingClient<WorkerCommand>, pending: Arc<AtomicUsize> },
}

/// The service with its clock.
pub(crate) struct Service {
    service: MetadataService,
    start: Instant,
}

impl Service {
    pub(super) fn new(tree: Arc<MetadataTree>, tokens: TokenPolicy) -> Result<Self, String> {
        let config = Config::new(tree).token_policy(tokens);
        let service = MetadataService::new(config).map_err(|e| e.to_string())?;
        Ok(Self { service, start: Instant::now() })
    }

    pub(super) fn set_tree(&mut self, tree: Arc<MetadataTree>) {
        self.service.set_tree(tree);
    }

    pub(super) fn ingest(&mut self, frame: &[u8]) {
        let now = self.start.elapsed();
        self.service.ingest(frame, now);
    }

    pub(super) fn is_active(&self) -> bool {
        self.service.is_active()
    }

    /// Lets the service work and gives its frames to `out` as long as that takes them.
    pub(super) fn pump(&mut self, mut out: impl FnMut(&[u8]) -> bool) {
        self.service.poll(self.start.elapsed());
        while let Some(frame) = self.service.pop_frame() {
            // A frame that the guest has no buffer for is lost like one on a wire: TCP sends it
            // again.
            if !out(&frame) {
                break;
            }
        }
    }

    /// How long until the service has to work again; None while it is idle.
    pub(super) fn delay(&mut self) -> Option<Duration> {
        let now = self.start.elapsed();
        self.service.next_deadline(now).map(|at| at.saturating_sub(now))
    }
}

impl Detour for MetadataDetour {
    #[inline]
    fn wants(&self, start: &[u8]) -> bool {
        zerowire_metadata::wants(start)
    }

    fn take(&mut self, frame: &[u8]) {
        match self {
            Self::Service(s) => s.ingest(frame),
            Self::Forward { to, pending } => {
                // One more than the bound in a race is harmless.
                if pending.load(Ordering::Relaxed) < MAX_FORWARDED {
                    pending.fetch_add(1, Ordering::Relaxed);
                    if !to.send(WorkerCommand::Frame(frame.to_vec())) {
                        pending.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(file: &std::path::Path) -> Result<Arc<MetadataTree>, String> {
        MetadataSource { file: file.to_owned(), tokens: TokenPolicy::Optional }.load()
    }

    #[test]
    fn what_is_no_file_or_too_long_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("made");
        for path in [fifo.as_path(), "/dev/zero".as_ref(), dir.path()] {
            let said = loaded(path).expect_err("no file");
            assert!(said.contains("not a regular file") && said.contains(&*path.to_string_lossy()), "{said}");
        }
        let file = dir.path().join("file");
        std::fs::write(&file, format!("\"{}\"", "x".repeat(2 * MAX_TREE_BYTES))).expect("written");
        let said = loaded(&file).expect_err("too long");
        assert!(said.contains(&MAX_TREE_BYTES.to_string()), "{said}");
        std::fs::write(&file, "{\"a\": 1}").expect("written");
        assert!(loaded(&file).is_ok());
    }
}
