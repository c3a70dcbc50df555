//! A worker that has slept long sees an interface come up, and the log has no errors of that.

use std::fmt::{Debug, Write};
use std::sync::Mutex;
use std::time::Duration;

use crate::support::frames::{frame, number};
use crate::support::{Backend, Peer, Vm, in_netns, options, wait_until};
use tracing::field::{Field, Visit};
use tracing::span;
use zerowire_guest::net::Layout;
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::own_process;

/// The errors that were logged.
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        ERRORS.lock().unwrap_or_else(|e| e.into_inner()).push(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn errors() -> Vec<String> {
    std::mem::take(&mut ERRORS.lock().unwrap_or_else(|e| e.into_inner()))
}

#[test]
fn an_idle_worker_sees_the_interface_come_up_and_logs_no_error() {
    own_process!();
    tracing::subscriber::set_global_default(Log).expect("the only log of this process");
    for port in ["packet:v0,receive=socket", "packet:v0,rings=on,receive=ring"] {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut peer = Peer::new("v1");
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            guest.ping(&mut peer, 1);
            assert_eq!(errors(), [""; 0], "a connection");
            for n in 0..2 {
                // Longer than a worker waits before it lets go of what bursts have touched, and
                // sleeps without bound.
                std::thread::sleep(Duration::from_millis(1500));
                ip(&["link", "set", "v0", "down"]);
                wait_until("the interface is down", || backend.stats("a").path.contains("which is down"));
                ip(&["link", "set", "v0", "up"]);
                // The guest is silent; frames that came before the worker looked were for nobody.
                let mut got = None;
                wait_until("a frame arrives", || {
                    let _ = peer.send_with(&[0; 10], &frame(n, 100));
                    got = guest.recv(0, Duration::from_millis(20));
                    got.is_some()
                });
                assert_eq!(got.map(|(_, f)| number(&f)), Some(n));
                wait_until("the path is described", || backend.stats("a").path.contains("sendmmsg"));
                while guest.recv(0, Duration::from_millis(100)).is_some() {}
            }
            assert_eq!(errors(), [""; 0], "down and up");
            // One that is deleted is an error, and none of the worker's own.
            drop(peer);
            ip(&["link", "del", "v0"]);
            wait_until("the interface is gone", || backend.stats("a").path.contains("no interface"));
            veth("v0", "v1", 1, 1500);
            let peer = Peer::new("v1");
            wait_until("a frame arrives", || {
                let _ = peer.send_with(&[0; 10], &frame(7, 100));
                guest.recv(0, Duration::from_millis(20)).is_some()
            });
            let errors = errors();
            assert!(!errors.is_empty() && errors.iter().all(|e| e.contains("v0")), "{errors:?}");
        });
    }
}
