//! `zerowire ctl`: manages a running `zerowire net` or `zerowire vsock` with `--control PATH`.

pub mod client;
mod words;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value, json};
use zerowire_cli::WrongArguments;
use zerowire_cli::columns::{fit, width};
use zerowire_cli::logging::printable;

use crate::control::CaptureTable;
use client::{Client, CtlAnswer};

/// Arguments of `zerowire ctl`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct CtlArgs {
    /// Control socket of the server.
    #[arg(long, global = true, value_name = "PATH", default_value = "/run/zerowire/control.sock")]
    control: PathBuf,
    /// Print the server's JSON in place of words.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Debug, Subcommand)]
enum CtlCommand {
    /// The version of the server.
    Version,
    /// All VMs.
    List,
    /// One VM with its statistics.
    Show(Name),
    /// Add a VM.
    Add(Box<Add>),
    /// Give a VM other limits, another guard, or other metadata, which its guest sees at once; with
    /// --reconnect also another port, other groups and all else.
    Change(Box<Change>),
    /// Remove a VM: its front end is disconnected.
    Remove(Name),
    /// Take no further front end for a VM, and remove it when the present one has left.
    Drain(Name),
    /// The capture of what VMs send and receive.
    Capture {
        #[command(subcommand)]
        command: CaptureCommand,
    },
    /// Statistics.
    Stats {
        /// Once a second, until interrupted.
        #[arg(long)]
        follow: bool,
    },
    /// Statistics as Prometheus reads them.
    Metrics,
}

#[derive(Debug, Subcommand)]
enum CaptureCommand {
    /// Begin with one, of which there is one at a time.
    Start(CaptureStart),
    /// The file that is written.
    Show,
    /// End it.
    Stop,
}

/// A capture in a folder of the server's (--pcap-dir DIR).
#[derive(Args, Debug)]
struct CaptureStart {
    /// Name of the file in that folder. It is made, or emptied if it exists.
    #[arg(value_name = "FILE")]
    file: String,
    /// Bytes to capture of each frame, 1 to 262144: 128 hold the headers.
    #[arg(long, value_name = "BYTES")]
    snaplen: Option<u32>,
    /// As for 'zerowire net --pcap-rotate'.
    #[arg(long, value_name = "SIZE,FILES")]
    rotate: Option<String>,
    /// Capture the VM of this name, and no others; repeat for more.
    #[arg(long, value_name = "NAME")]
    vm: Vec<String>,
    /// As for --pcap-filter of 'zerowire net' and 'zerowire vsock'.
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,
}

#[derive(Args, Debug)]
struct Name {
    /// Name of the VM.
    #[arg(value_name = "NAME")]
    name: String,
}

/// What can change in a VM that runs.
#[derive(Args, Debug)]
struct Change {
    #[command(flatten)]
    vm: Name,
    #[command(flatten)]
    keys: VmKeys,
    /// Disconnect the front end if that takes another device, such as one with another port. It
    /// has to connect again by itself (QEMU: reconnect=1). Without this such a change is refused.
    #[arg(long)]
    reconnect: bool,
}

impl Change {
    /// The request's target.
    fn path(&self) -> String {
        path(&self.vm) + if self.reconnect { "?reconnect" } else { "" }
    }

    /// The merge patch.
    fn patch(&self) -> Result<Value> {
        let keys = self.keys.given()?;
        if keys.is_empty() {
            let text = "nothing is to change: give an option of it, such as --tx-limit LIMIT";
            return Err(WrongArguments(text.to_owned()).into());
        }
        Ok(Value::Object(keys))
    }
}

/// A VM that comes.
#[derive(Args, Debug)]
#[command(
    mut_arg("socket", |socket| socket.required(true)),
    mut_arg("port", |port| port.required_unless_present("cid")),
    mut_arg("cid", |cid| cid.requires("uds")),
    mut_arg("uds", |uds| uds.requires("cid"))
)]
struct Add {
    #[command(flatten)]
    vm: Name,
    #[command(flatten)]
    keys: VmKeys,
}

impl Add {
    /// The body.
    fn table(&self) -> Result<Value> {
        let mut keys = self.keys.given()?;
        keys.retain(|_, value| !value.is_null());
        Ok(keys.into())
    }
}

/// The keys of a VM, as in the file of --config. Paths are those of the server.
#[derive(Args, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct VmKeys {
    /// Unix socket to listen on for the front end.
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    net: NetKeys,
    #[command(flatten)]
    #[serde(flatten)]
    vsock: VsockKeys,
    /// What the guest may send in a second, as for 'zerowire net --tx-limit'; 'off' for no limit.
    #[arg(long, value_name = "LIMIT")]
    tx_limit: Option<String>,
    /// What the guest may receive in a second; 'off' for no limit.
    #[arg(long, value_name = "LIMIT")]
    rx_limit: Option<String>,
    /// User who owns the front end's socket.
    #[arg(long, value_name = "USER")]
    socket_owner: Option<String>,
    /// Group whose users may connect as a front end.
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// Permissions of the front end's socket, in octal.
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
}

/// Keys for a server of network devices.
#[derive(Args, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct NetKeys {
    /// Where frames go, as for 'zerowire net --port'.
    #[arg(long, value_name = "PORT", conflicts_with = "cid")]
    port: Option<String>,
    /// JSON file to serve inside the guest. If the VM has it already, it is read again.
    #[arg(long, value_name = "FILE", conflicts_with = "cid")]
    metadata: Option<String>,
    /// Whether metadata requests need a session token: required or optional.
    #[arg(long, value_name = "WHEN", conflicts_with = "cid")]
    metadata_token: Option<String>,
    /// The device's address, for front ends that ask the back end for it.
    #[arg(long, value_name = "MAC", conflicts_with = "cid")]
    mac: Option<String>,
    /// What the guest may send, as for 'zerowire net --guard'; 'off' for all frames.
    #[arg(long, value_name = "CHECKS", conflicts_with = "cid")]
    guard: Option<String>,
}

/// Keys for a server of vsock devices.
#[derive(Args, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct VsockKeys {
    /// The guest's address, of a server of 'zerowire vsock --control PATH'.
    #[arg(long, value_name = "N")]
    cid: Option<u64>,
    /// The host's end, as for 'zerowire vsock --uds'.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    uds: Option<String>,
    /// Groups of the VM, with + between them.
    #[arg(long, value_name = "A+B", value_delimiter = '+', conflicts_with = "port")]
    groups: Option<Vec<String>>,
    /// User who owns the host end's sockets.
    #[arg(long, value_name = "USER", conflicts_with = "port")]
    uds_owner: Option<String>,
    /// Group whose programs may connect to the host end.
    #[arg(long, value_name = "GROUP", conflicts_with = "port")]
    uds_group: Option<String>,
    /// Permissions of the host end's sockets, in octal.
    #[arg(long, value_name = "MODE", conflicts_with = "port")]
    uds_mode: Option<String>,
}

impl VmKeys {
    /// The keys that were given. Null turns a thing off.
    fn given(&self) -> Result<Map<String, Value>> {
        let mut keys: Map<_, _> = serde_json::from_value(serde_json::to_value(self)?)?;
        keys.retain(|_, value: &mut Value| !value.is_null());
        for key in ["guard", "tx-limit", "rx-limit"] {
            if let Some(value) = keys.get_mut(key).filter(|value| **value == "off") {
                *value = Value::Null;
            }
        }
        Ok(keys)
    }
}

const AFTER_HELP: &str = "\
Paths that are given to 'add' and 'change' are those of the server.

Exit status: 0 done, 1 the server can't be reached or can't do it, 2 wrong arguments.

Examples:
  zerowire net --control /run/zerowire/control.sock &
  zerowire ctl add web --socket /run/web.sock --port tap:web0
  zerowire ctl stats --follow
  zerowire vsock --control /run/zerowire/vsock.sock &
  zerowire ctl add web --socket /run/web.vsock --cid 3 --uds /run/web \\
    --control /run/zerowire/vsock.sock
  curl --unix-socket /run/zerowire/control.sock http://localhost/vms";

/// Runs the command.
pub fn run(args: &CtlArgs) -> Result<ExitCode> {
    let ctl = Ctl { client: Client::new(&args.control), json: args.json };
    match &args.command {
        CtlCommand::Version => ctl.get("/version", words::version),
        CtlCommand::List => ctl.get("/vms", words::list),
        CtlCommand::Show(vm) => ctl.get_text(&path(vm)),
        CtlCommand::Add(add) => ctl.told("PUT", &path(&add.vm), Some(&add.table()?), &words::added),
        CtlCommand::Change(change) => {
            let patch = change.patch()?;
            let changed = |answer: &Value| words::changed(answer, &patch);
            let words: &dyn Fn(&Value) -> String =
                if change.reconnect { &words::reconnects } else { &changed };
            ctl.told("PATCH", &change.path(), Some(&patch), words)
        }
        CtlCommand::Remove(vm) => {
            let done = json!({ "name": vm.name, "state": "removed" });
            ctl.done("DELETE", &path(vm), &done, &format!("{}: removed\n", vm.name))
        }
        CtlCommand::Drain(vm) => {
            let done = json!({ "name": vm.name, "state": "draining" });
            let text =
                format!("{}: takes no further front end; it goes when the present one leaves\n", vm.name);
            ctl.done("POST", &(path(vm) + "/drain"), &done, &text)
        }
        CtlCommand::Capture { command } => ctl.capture(command),
        CtlCommand::Stats { follow: false } => ctl.get_text("/stats"),
        CtlCommand::Stats { follow: true } => ctl.client.follow("/stats?stream", ctl.accept(), ctl.print()),
        CtlCommand::Metrics => ctl.metrics(),
    }?;
    Ok(ExitCode::SUCCESS)
}

struct Ctl<'a> {
    client: Client<'a>,
    json: bool,
}

impl Ctl<'_> {
    /// What to ask the server for where it has words for people.
    fn accept(&self) -> &'static str {
        if self.json { "application/json" } else { "text/plain" }
    }

    /// How to print what [`Self::accept`] asks for.
    fn print(&self) -> fn(&[u8]) -> Result<()> {
        if self.json { print_raw } else { print_words }
    }

    fn ask(&self, method: &str, path: &str, accept: &str, body: Option<&Value>) -> Result<CtlAnswer> {
        let body = body.map(serde_json::to_vec).transpose()?;
        let answer = self.client.ask(method, path, accept, body.as_deref())?;
        if answer.status < 300 { Ok(answer) } else { Err(refusal(&answer)) }
    }

    /// Prints what the server has, in its words or in those of `words`.
    fn get(&self, path: &str, words: fn(&Value) -> String) -> Result<()> {
        self.told("GET", path, None, &words)
    }

    fn get_text(&self, path: &str) -> Result<()> {
        self.print()(&self.ask("GET", path, self.accept(), None)?.body)
    }

    fn told(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        words: &dyn Fn(&Value) -> String,
    ) -> Result<()> {
        let answer = self.ask(method, path, "application/json", body)?;
        if self.json {
            return print_raw(&answer.body);
        }
        let value = serde_json::from_slice(&answer.body).context("the server's answer is no JSON")?;
        print_words(words(&value).as_bytes())
    }

    fn done(&self, method: &str, path: &str, done: &Value, words: &str) -> Result<()> {
        self.ask(method, path, "application/json", None)?;
        if self.json { print_raw(format!("{done}\n").as_bytes()) } else { print_words(words.as_bytes()) }
    }

    fn capture(&self, command: &CaptureCommand) -> Result<()> {
        match command {
            CaptureCommand::Start(CaptureStart { file, snaplen, rotate, vm, filter }) => {
                let (file, rotate) = (file.clone(), rotate.clone());
                let table =
                    CaptureTable { file, snaplen: *snaplen, rotate, vms: vm.clone(), filter: filter.clone() };
                let body = serde_json::to_value(table)?;
                self.told("PUT", "/capture", Some(&body), &words::captured)
            }
            CaptureCommand::Show => self.get("/capture", words::captured),
            CaptureCommand::Stop => {
                let done = json!({ "state": "ended" });
                self.done("DELETE", "/capture", &done, "the capture has ended\n")
            }
        }
    }

    fn metrics(&self) -> Result<()> {
        if self.json {
            let text = "--json: metrics have a format of their own: leave it out, or take 'zerowire ctl stats --json'";
            return Err(WrongArguments(text.to_owned()).into());
        }
        // Lines stay whole: half of one can't be read.
        print_raw(&self.ask("GET", "/metrics", "application/openmetrics-text", None)?.body)
    }
}

/// What the server says of a request that it did not carry out.
pub fn refusal(answer: &CtlAnswer) -> anyhow::Error {
    let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let text = match value["error"].as_str() {
        Some(text) => printable(text),
        None => format!("the server answered {} without a reason", answer.status),
    };
    // With a key, the option of that name.
    let text = match value["pointer"].as_str().and_then(|p| p.strip_prefix('/')) {
        // The file of a capture is an argument without a name.
        Some(key) if key != "file" => format!("--{key}: {text}"),
        _ => text,
    };
    if answer.status == 400 { WrongArguments(text).into() } else { anyhow!(text) }
}

const UNWRITTEN: &str = "can't write to standard output";

/// Prints lines for people, fit to the terminal.
fn print_words(text: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(text);
    let lines: String = text.lines().map(|line| printable(line) + "\n").collect();
    print_raw(fit(&lines, width(&std::io::stdout())).as_bytes())
}

/// Prints what programs read.
fn print_raw(text: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush()).context(UNWRITTEN)
}

fn path(vm: &Name) -> String {
    format!("/vms/{}", encoded(&vm.name))
}

/// A name as a part of a path: what is not unreserved (RFC 3986) has a percent sign.
fn encoded(name: &str) -> String {
    let byte = |b: u8| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    name.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_a_path() {
        assert_eq!(encoded("web-1.a_b~"), "web-1.a_b~");
        assert_eq!(encoded("a b/ä"), "a%20b%2F%C3%A4");
    }

    /// What a command line of `ctl` is parsed to.
    fn parsed(arguments: &[&str]) -> Result<CtlCommand, clap::Error> {
        #[derive(clap::Parser)]
        struct CtlLine {
            #[command(flatten)]
            ctl: CtlArgs,
        }
        let arguments = ["ctl"].iter().chain(arguments);
        Ok(<CtlLine as clap::Parser>::try_parse_from(arguments)?.ctl.command)
    }

    #[test]
    fn a_patch_has_what_was_given() {
        let change = |arguments: &[&str]| match parsed(&[&["change", "a b"], arguments].concat()) {
            Ok(CtlCommand::Change(change)) => change,
            other => panic!("{other:?}"),
        };
        let limits = change(&["--metadata", "/m", "--rx-limit", "off", "--guard", "arp"]);
        assert_eq!(limits.path(), "/vms/a%20b");
        let patch = json!({ "metadata": "/m", "rx-limit": null, "guard": "arp" });
        assert_eq!(limits.patch().expect("keys"), patch);
        let groups = change(&["--groups", "x+y", "--cid", "7", "--reconnect"]);
        assert_eq!(groups.path(), "/vms/a%20b?reconnect");
        assert_eq!(groups.patch().expect("keys"), json!({ "groups": ["x", "y"], "cid": 7 }));
        assert!(change(&["--reconnect"]).patch().expect_err("no key").is::<WrongArguments>());
        assert!(parsed(&["change", "a", "--port", "tap:t", "--groups", "x"]).is_err());
    }

    #[test]
    fn a_vm_that_comes_has_a_table_without_what_is_off() {
        let add = ["add", "a", "--socket", "/s", "--port", "tap:t", "--tx-limit", "off", "--mac", "m"];
        let Ok(CtlCommand::Add(vm)) = parsed(&add) else { panic!("not parsed") };
        assert_eq!(vm.table().expect("keys"), json!({ "socket": "/s", "port": "tap:t", "mac": "m" }));
    }

    #[test]
    fn what_the_server_refuses_names_the_option() {
        let answer = |status, body: &str| CtlAnswer { status, body: body.as_bytes().to_vec() };
        let e = refusal(&answer(400, "{\"error\": \"port 'x'\", \"pointer\": \"/port\"}"));
        assert_eq!((e.to_string().as_str(), e.is::<WrongArguments>()), ("--port: port 'x'", true));
        let e = refusal(&answer(404, "{\"error\": \"no VM\"}"));
        assert_eq!((e.to_string().as_str(), e.is::<WrongArguments>()), ("no VM", false));
        assert!(refusal(&answer(500, "oops")).to_string().contains("500"));
        let e = refusal(&answer(422, "{\"error\": \"/s\\u001b[2J\\nfake\"}"));
        assert_eq!(e.to_string(), "/s\\u{1b}[2J\\nfake");
    }
}
