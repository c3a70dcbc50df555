//! What each route does.

use std::sync::Arc;

use serde::Serialize;
use zerowire_vhost::serve::{ServerStats, VmTurn};

use super::body::{self, BodyError};
use super::capture::ShownCapture;
use super::http::{ControlRequest, Response, Stream, response};
use super::manage::{Manage, ManageError, ManagedVm, VmReport};
use super::metrics::{self, Exposition};
use super::routes::{Action, Routed, asks, find};
use super::serve::Handler;

/// The control socket's side of a server.
pub struct Api<M> {
    manage: Arc<M>,
}

#[derive(Serialize)]
pub(super) struct Version {
    version: &'static str,
    sandbox: &'static str,
    /// Why the VMs are not confined.
    sandbox_reason: Option<&'static str>,
}

impl Version {
    pub(super) fn now() -> Self {
        let sandbox_reason = crate::sandbox::obstacle();
        let sandbox = if sandbox_reason.is_none() { "on" } else { "off" };
        Self { version: env!("CARGO_PKG_VERSION"), sandbox, sandbox_reason }
    }
}

#[derive(Serialize)]
struct VmList<T> {
    vms: Vec<ManagedVm<T>>,
}

/// A VM with its statistics, which it has while it runs.
#[derive(Serialize)]
pub(super) struct VmShown<T, V> {
    #[serde(flatten)]
    pub(super) vm: ManagedVm<T>,
    pub(super) statistics: Option<V>,
}

impl From<ManageError> for Response {
    fn from(refusal: ManageError) -> Self {
        let pointer = refusal.key.map(|key| format!("/{key}"));
        Self::error(refusal.status, &refusal.text, pointer.as_deref())
    }
}

impl From<BodyError> for Response {
    fn from(e: BodyError) -> Self {
        Self::error(400, &e.text, Some(&e.pointer))
    }
}

impl<M: Manage> Api<M> {
    /// For the server behind `manage`.
    pub fn new(manage: Arc<M>) -> Self {
        Self { manage }
    }

    /// The turn of a change that enters no VM.
    fn turn(&self, name: &str) -> Result<VmTurn<'_>, ManageError> {
        self.manage.turn().of(name).map_err(ManageError::late)
    }

    fn vm(&self, name: &str) -> Result<ManagedVm<M::Table>, ManageError> {
        let vm = self.manage.vms().into_iter().find(|vm| vm.name == name);
        vm.ok_or_else(|| ManageError::unknown(name))
    }

    fn show(&self, request: &ControlRequest, name: &str) -> Result<Response, Response> {
        let vm = self.vm(name)?;
        let mut stats = self.manage.stats();
        stats.vms.retain(|vm| vm.name() == name);
        if request.accept.text {
            return Ok(words(&stats));
        }
        Ok(Response::json(200, &VmShown { vm, statistics: stats.vms.pop() }))
    }

    fn add(&self, name: &str, body: &[u8]) -> Result<Response, Response> {
        let vm = body::parse(body)?;
        let turn = self.manage.turn().entering(name).map_err(ManageError::late)?;
        self.manage.add(name, vm, turn)?;
        tracing::info!(vm = name, "added by the control socket");
        Ok(Response::json(201, &self.vm(name)?))
    }

    fn change(&self, name: &str, body: &[u8], reconnects: bool) -> Result<Response, Response> {
        let turn = self.turn(name)?;
        let before = self.vm(name)?.config;
        let (wanted, keys) = body::merge(&before, body)?;
        let is_another = self.manage.change(name, wanted, &keys, reconnects, turn)?;
        if !keys.is_empty() {
            let end = if is_another { "; its front end has to connect again" } else { "" };
            tracing::info!(vm = name, "changed by the control socket: {}{end}", keys.join(", "));
        }
        Ok(Response::json(200, &self.vm(name)?))
    }

    fn begin_capture(&self, body: &[u8]) -> Result<Response, Response> {
        self.manage.captures().begin(&body::parse(body)?)?;
        let capture = self.capture()?;
        tracing::info!("capturing to {}, asked for by the control socket", capture.table.file);
        if !capture.unknown_vms.is_empty() {
            tracing::warn!("the capture lacks VMs until they come: {}", capture.unknown_vms.join(", "));
        }
        Ok(Response::json(201, &capture))
    }

    fn capture(&self) -> Result<ShownCapture, ManageError> {
        let vms = self.manage.vms();
        self.manage.captures().shown(|name| vms.iter().any(|vm| vm.name == name))
    }

    fn stats(&self, request: &ControlRequest, as_stream: bool) -> Response {
        match (as_stream, request.accept.text) {
            (false, false) => Response::json(200, &self.manage.stats()),
            (false, true) => words(&self.manage.stats()),
            (true, false) => Response::stream(Stream::JsonLines),
            (true, true) => Response::stream(Stream::Tables),
        }
    }

    fn carry_out(&self, request: &ControlRequest, body: &[u8]) -> Result<Response, Response> {
        let (action, name) = match find(request.method, &request.path) {
            Routed::Action(action, name) => (action, name),
            Routed::Methods(allow) => {
                let text = format!("this path takes {}", allow.join(", "));
                return Err(Response { allow, ..Response::error(405, &text, None) });
            }
            Routed::Nothing => {
                let text = "no such path: /version, /vms, /vms/NAME, /vms/NAME/drain, /capture, /stats and /metrics are served";
                return Err(Response::error(404, text, None));
            }
        };
        let asked = asks(action, &request.query).ok_or_else(|| unknown_query(&request.query))?;
        match action {
            Action::Version => Ok(Response::json(200, &Version::now())),
            Action::List => Ok(Response::json(200, &VmList { vms: self.manage.vms() })),
            Action::Show => self.show(request, name),
            Action::Add => self.add(name, body),
            Action::Change => self.change(name, body, asked),
            Action::Remove => {
                let _turn = self.turn(name)?;
                self.manage.remove(name)?;
                Ok(Response::empty(204))
            }
            Action::Drain => {
                let _turn = self.turn(name)?;
                self.manage.drain(name)?;
                Ok(Response::empty(202))
            }
            Action::ShowCapture => Ok(Response::json(200, &self.capture()?)),
            Action::BeginCapture => self.begin_capture(body),
            Action::EndCapture => {
                self.manage.captures().end()?;
                tracing::info!("the capture was ended by the control socket");
                Ok(Response::empty(204))
            }
            Action::Stats => Ok(self.stats(request, asked)),
            Action::Metrics => Ok(exposed(request, &self.manage.stats())),
        }
    }
}

impl<M: Manage> Handler for Api<M> {
    fn answer(&self, request: &ControlRequest, body: &[u8]) -> Response {
        self.carry_out(request, body).unwrap_or_else(|refusal| refusal)
    }

    fn piece(&self, stream: Stream) -> Vec<u8> {
        let stats = self.manage.stats();
        match stream {
            Stream::JsonLines => [serde_json::to_vec(&stats).unwrap_or_default(), b"\n".to_vec()].concat(),
            Stream::Tables => (VmReport::table(&stats) + "\n").into_bytes(),
        }
    }
}

/// What Prometheus reads over TCP.
pub struct Metrics<M> {
    manage: Arc<M>,
}

impl<M: Manage> Metrics<M> {
    /// Of the server behind `manage`.
    pub fn new(manage: Arc<M>) -> Self {
        Self { manage }
    }
}

impl<M: Manage> Handler for Metrics<M> {
    fn answer(&self, request: &ControlRequest, _body: &[u8]) -> Response {
        match find(request.method, &request.path) {
            Routed::Action(Action::Metrics, _) => exposed(request, &self.manage.stats()),
            _ => Response::error(404, "only GET /metrics is served here", None),
        }
    }

    fn piece(&self, _stream: Stream) -> Vec<u8> {
        b"\n".to_vec()
    }
}

fn unknown_query(query: &str) -> Response {
    let query: String = query.chars().take(100).collect();
    let text =
        format!("the query '{query}' is not known: GET /stats takes 'stream', PATCH /vms/NAME 'reconnect'");
    Response::error(400, &text, None)
}

/// Statistics for people.
fn words<V: VmReport>(stats: &ServerStats<V>) -> Response {
    Response::whole(200, response::TEXT, V::table(stats).into_bytes())
}

fn exposed<V: VmReport>(request: &ControlRequest, stats: &ServerStats<V>) -> Response {
    let form = if request.accept.open_metrics { Exposition::OpenMetrics } else { Exposition::Text };
    Response::whole(200, form.content_type(), metrics::render(stats, form).into_bytes())
}
