//! The metadata detour of one VM.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use zerowire_metadata::{Config, MetadataService, MetadataTree, TokenPolicy};

use super::command::{Command, CommandSender};
use crate::net::transmit::Detour;

/// Where a VM's metadata come from.
#[derive(Clone, Debug)]
pub struct MetadataSource {
    /// A JSON file.
    pub file: PathBuf,
    /// Whether requests need a session token.
    pub tokens: TokenPolicy,
}

impl MetadataSource {
    /// Reads the file.
    pub fn load(&self) -> Result<Arc<MetadataTree>, String> {
        let text = std::fs::read_to_string(&self.file)
            .map_err(|e| format!("metadata file {} can't be read: {e}", self.file.display()))?;
        MetadataTree::from_json_str(&text)
            .map(Arc::new)
            .map_err(|e| format!("metadata file {}: {e}", self.file.display()))
    }
}

/// Frames on their way from other workers to the service at most; further ones are lost, as on a wire.
const MAX_FORWARDED: usize = 256;

/// What a worker does with frames for the service: the first worker of a VM runs the service, the others send it
/// their frames.
pub(super) enum MetadataDetour {
    Service(Box<Service>),
    Forward { to: CommandSender, pending: Arc<AtomicUsize> },
}

/// The service with its clock.
pub(super) struct Service {
    service: MetadataService,
    start: Instant,
}

impl Service {
    pub(super) fn new(tree: Arc<MetadataTree>, tokens: TokenPolicy) -> Result<Self, String> {
        let config = Config { token_policy: tokens, ..Config::new(tree) };
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
            // A frame that the guest has no buffer for is lost like one on a wire: TCP sends it again.
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
                    if !to.send(Command::MetadataFrame(frame.to_vec())) {
                        pending.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}
