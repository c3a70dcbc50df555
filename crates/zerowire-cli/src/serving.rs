//! What the commands that serve VMs have in common: how VMs are named, what goes on while they are
//! served, how statistics go out, descriptors.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use zerowire_capture::Captured;
use zerowire_cli::WrongArguments;
use zerowire_cli::columns::{fit, width};
use zerowire_vhost::serve::{FrontEndRefusal, RefusalKind, ServerRefusal, ServerStats, VmFleet};

use crate::control::Service;
use crate::file::{self, ReadText, VmTable, WrongKey};
use crate::pcap;
use crate::printer::Printer;
use crate::service::{Notifier, Watched};
use crate::signals::Signals;

/// How often a program that ends with its connections looks whether they are there.
const TICK: Duration = Duration::from_millis(200);

/// The VMs of the file of --config or of each --vm: `table` is the name of their table in the file,
/// and how to find it, `parse` reads --vm, and `make` makes a VM of a table. None if neither option
/// is given. The file may lack such VMs if there `may_be_none`.
pub fn named_vms<T, C>(
    config: Option<(&Path, ReadText)>,
    options: &[String],
    may_be_none: bool,
    (table, pick): (&str, fn(VmTable) -> Option<T>),
    parse: fn(&str) -> Result<(String, T)>,
    make: impl Fn(&str, T) -> Result<C, WrongKey>,
) -> Result<Option<Vec<C>>> {
    if let Some((path, text)) = config {
        let found = file::read(path, text, pick)?;
        if found.is_empty() && !may_be_none {
            bail!("{}: no [[vm]] with a [{table}] table", path.display());
        }
        let context = |name: &str| format!("{}: VM {name}", path.display());
        let vms = found.into_iter().map(|(name, vm)| make(&name, vm).with_context(|| context(&name)));
        return vms.collect::<Result<_>>().map(Some);
    }
    if options.is_empty() {
        return Ok(None);
    }
    let vms = options.iter().map(|option| {
        let vm = parse(option).and_then(|(name, vm)| Ok(make(&name, vm)?));
        vm.with_context(|| format!("--vm {option}"))
    });
    vms.collect::<Result<_>>().map(Some)
}

/// The name of the VM that the options describe, of which this one may be given.
pub fn own_name(name: &Option<String>) -> String {
    name.clone().unwrap_or_else(|| "vm0".to_owned())
}

/// Refuses options of a VM where they describe none; each one says whether it was given. The VMs
/// that come by the control socket would go without what they ask for.
pub fn refuse_without_vm(options: &[(&str, bool)]) -> Result<()> {
    if let Some((option, _)) = options.iter().find(|(_, given)| *given) {
        bail!(
            "{option} needs --socket PATH or --fd N: it holds for that VM, and for none that --control adds"
        );
    }
    Ok(())
}

/// Blocks the signals that [`serve`] waits for. Call this before threads are started.
pub fn block_signals() -> Result<Signals> {
    Signals::block(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1])
        .context("signals can't be blocked")
}

/// Serves until SIGTERM or SIGINT comes, and tells the service manager how the server fares:
/// SIGUSR1 prints statistics, as the end does, and SIGHUP has the configuration read again. A
/// program that is not `lasting` (a connection was handed over to it, and there will be no other)
/// also ends when the server is not alive any more. `open` opens the doors, which close first.
pub fn serve<F: VmFleet + Captured + ?Sized>(
    signals: &Signals,
    lasting: bool,
    server: &Arc<F>,
    open: impl FnOnce() -> Result<Vec<Service>>,
    mut printer: Printer,
    wording: impl Fn(&ServerStats<F::Stats>) -> Result<String>,
    mut reload: impl FnMut(),
) -> Result<ExitCode> {
    // Before somebody can remove a VM.
    let refusal = FrontEndRefusal::begin();
    let doors = open()?;
    let mut manager = Notifier::from_environment();
    let patience = (!lasting).then_some(TICK).into_iter().chain(manager.patience()).min();
    manager.ready(server);
    loop {
        match signals.wait(patience).context("waiting for signals failed")? {
            Some(libc::SIGUSR1) => printer.print(wording(&server.stats())),
            Some(libc::SIGHUP) => {
                manager.reloading();
                reload();
                manager.ready(server);
            }
            Some(_) => break,
            None if !lasting && !server.is_alive() => break,
            None => {}
        }
        manager.turn(server);
    }
    manager.stopping();
    drop(doors);
    manager.tell_unsent();
    let stats = server.stats();
    // Front ends that connect from now on wait for the next process.
    drop(refusal);
    server.stop();
    manager.tell_unsent();
    pcap::finish(server.capture().as_ref());
    Ok(printer.finish(wording(&stats)?))
}

impl<F: VmFleet + ?Sized> Watched for Arc<F> {
    fn is_alive(&self) -> bool {
        (**self).is_alive()
    }

    fn connected(&self) -> (usize, usize) {
        let vms = self.vms();
        (vms.iter().filter(|vm| vm.connected).count(), vms.len())
    }

    fn ask(&self) {
        (**self).ask();
    }

    fn silent(&self) -> Vec<String> {
        (**self).silent()
    }
}

/// Why the VMs of this file, or of the command line, can't be served.
pub fn refused(config: &Option<PathBuf>, e: &impl ServerRefusal) -> anyhow::Error {
    let text = match config {
        Some(file) => format!("{}: {e}", file.display()),
        None => e.to_string(),
    };
    match e.kind() {
        // The configuration alone says so, whatever the system has.
        RefusalKind::Unknown | RefusalKind::Malformed | RefusalKind::Conflict | RefusalKind::Unsupported => {
            WrongArguments(text).into()
        }
        RefusalKind::Unavailable | RefusalKind::Passing => anyhow!(text),
    }
}

/// Statistics as they are printed: one line of JSON, or as `table` words them.
pub fn wording<S: Serialize>(stats: &S, json: bool, table: fn(&S) -> String) -> Result<String> {
    Ok(if json {
        format!("{}\n", serde_json::to_string(stats)?)
    } else {
        fit(&table(stats), width(&std::io::stdout()))
    })
}

/// Raises the soft limit of open files (often 1024) to the hard one and returns that; None stands
/// for no limit.
pub fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // To raise the soft limit up to the hard one is always allowed.
    let _ = setrlimit(Resource::Nofile, limit);
    limit.maximum
}

/// The options of a command that describe its only VM, but for those that say where its socket is.
#[cfg(test)]
pub fn options_of_a_vm<A: clap::Args>() -> Vec<String> {
    let command = A::augment_args(clap::Command::new("command"));
    let of_a_vm = |arg: &&clap::Arg| {
        let others = command.get_arg_conflicts_with(arg);
        ["vm", "config"].iter().all(|name| others.iter().any(|other| other.get_id() == *name))
    };
    let names = command.get_arguments().filter(of_a_vm).filter_map(clap::Arg::get_long);
    names.filter(|name| !["socket", "fd"].contains(name)).map(|name| format!("--{name}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};

    use zerowire_vhost::serve::Endpoint;
    use zerowire_vsock::{VsockConfig, VsockFleet, VsockServer};

    use super::*;
    use crate::printer::PrintTarget;

    #[test]
    fn a_socket_without_a_vm_refuses_as_soon_as_somebody_can_remove_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let [path, uds] = ["s", "u"].map(|name| dir.path().join(name));
        let kept = UnixListener::bind(&path).expect("a socket");
        let endpoint = Endpoint::of(kept.try_clone().expect("a copy"));
        let server = VsockServer::start(vec![VsockConfig::new("a", endpoint, 3, uds)]);
        let server: Arc<dyn VsockFleet> = Arc::new(server.expect("a server"));
        let open = || {
            server.remove("a").expect("it runs");
            let mut front_end = UnixStream::connect(&path).expect("its maker has it");
            front_end.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
            assert_eq!(front_end.read(&mut [0]).ok(), Some(0), "it ends");
            bail!("there are no doors")
        };
        let (signals, printer) = (block_signals().expect("signals"), Printer::to(PrintTarget::Stdout));
        let ended = serve(&signals, true, &server, open, printer, |_| Ok(String::new()), || {});
        assert_eq!(ended.map_err(|e| e.to_string()).err().as_deref(), Some("there are no doors"));
    }
}
