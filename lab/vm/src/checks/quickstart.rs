//! The first page's quickstart, typed as it stands: on the host in a namespace of its own, and in
//! the guest on its console.
//!
//! ```text
//!  guest eth0 10.77.0.2 ── zerowire net ── tap0 10.77.0.1 ── NAT ── veth ── 9.9.9.9 (outside)
//! ```
//! Only `make` is left out: the test puts what it builds where the lines look for it.

use std::fs::File;
use std::io::{PipeWriter, Write as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use zerowire_vmtest::assets::QemuFiles;
use zerowire_vmtest::command::{Running, wait_for};
use zerowire_vmtest::guest::{BOOT, COMMAND};
use zerowire_vmtest::netns::Netns;
use zerowire_vmtest::runner::{Env, NeverBooted};
use zerowire_vmtest::{backend, by_hand, initrd};

const README: &str = include_str!("../../../../README.md");

/// Where the page's lines are.
const HEADING: &str = "## Quickstart\n";

/// What the line of the cleaning up begins with.
const AFTERWARDS: &str = "* **Afterwards:** `";

/// What the page says of a bridge, within a sentence.
const BRIDGE: &str = "ip link set tap0 master br0";

/// Runs the page's lines ($1) in a folder ($0). /run is empty, as the page takes it to be.
const SCRIPT: &str = r#"
set -e
mount -t tmpfs tmpfs /run
cd "$0"
PATH=$0/bin:$PATH:/usr/sbin:/sbin
set +e
. "$1"
"#;

/// The blocks of code in the quickstart.
struct Page {
    host: String,
    guest: String,
    libvirt: String,
}

impl Page {
    fn read() -> Result<Self> {
        let (_, text) = README.split_once(HEADING).context("README.md has no quickstart")?;
        let text = text.split("\n## ").next().unwrap_or_default();
        // Between two fences, whose first one may name a language.
        let blocks = text.split("```").skip(1).step_by(2);
        let blocks = blocks.filter_map(|block| Some(block.split_once('\n')?.1.to_owned()));
        let Ok([host, guest, libvirt]) = <[String; 3]>::try_from(blocks.collect::<Vec<_>>()) else {
            bail!("the quickstart has other blocks than those of host, guest and libvirt");
        };
        Ok(Self { host, guest, libvirt })
    }
}

/// The page's parts of a libvirt domain: of its memory, and the interface with this socket.
pub fn libvirt_parts(socket: &Path) -> Result<(String, String)> {
    let page = Page::read()?;
    let (memory, interface) = page.libvirt.split_once("…\n").context("no … between the two parts")?;
    ensure!(interface.contains("'/run/vm.sock'"), "another socket: {interface}");
    Ok((memory.to_owned(), interface.replace("/run/vm.sock", &socket.display().to_string())))
}

/// Two namespaces with a veth between them: the host of the quickstart, and what lies behind it.
struct Network {
    host: Netns,
    _outside: Netns,
}

impl Network {
    fn new() -> Result<Self> {
        let (host, outside) = (Netns::new()?, Netns::new()?);
        let inner = ["link", "add", "up0", "type", "veth", "peer", "name", "up1", "netns", outside.name()];
        host.ip(&inner)?;
        for (end, name, address) in [
            (&host, "up0", "192.0.2.2/24"),
            (&outside, "up1", "192.0.2.1/24"),
            (&outside, "lo", "9.9.9.9/32"),
        ] {
            end.ip(&["addr", "add", address, "dev", name])?;
            end.ip(&["link", "set", name, "up"])?;
        }
        host.ip(&["route", "add", "default", "via", "192.0.2.1"])?;
        Ok(Self { host, _outside: outside })
    }

    /// The tap goes from its address to a bridge that has it.
    fn bridge(&self) -> Result<()> {
        ensure!(README.contains(&format!("`{BRIDGE}`")), "README.md says something else of a bridge");
        self.host.ip(&["link", "add", "br0", "type", "bridge"])?;
        self.host.ip(&["link", "set", "br0", "up"])?;
        self.host.ip(&["addr", "del", "10.77.0.1/24", "dev", "tap0"])?;
        self.host.ip(&["addr", "add", "10.77.0.1/24", "dev", "br0"])?;
        let words: Vec<&str> = BRIDGE.split(' ').skip(1).collect();
        self.host.ip(&words).map(drop)
    }
}

/// The terminal at which the page's reader sits.
struct Terminal {
    process: Running,
    keys: PipeWriter,
    log: PathBuf,
    /// Bytes of the log before this were looked at.
    position: usize,
}

impl Terminal {
    fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let (input, keys) = std::io::pipe().context("make a pipe")?;
        let file = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        command.stdin(input).stdout(file.try_clone()?).stderr(file);
        Ok(Self { process: Running::start(command)?, keys, log, position: 0 })
    }

    /// What appears before the guest's next prompt.
    fn until_prompt(&mut self, limit: Duration) -> Result<String> {
        let text = wait_for("the guest's prompt", limit, || {
            if let Some(status) = self.process.ended()? {
                bail!("the lines of the host ended with {status}");
            }
            let bytes = std::fs::read(&self.log)?;
            let news = String::from_utf8_lossy(&bytes[self.position..]).into_owned();
            let Some(at) = news.find(by_hand::PROMPT) else { return Ok(None) };
            self.position += at + by_hand::PROMPT.len();
            Ok(Some(news[..at].to_owned()))
        })?;
        Ok(text.replace('\r', ""))
    }

    /// Types a line and returns what it prints.
    fn enter(&mut self, line: &str) -> Result<String> {
        self.keys.write_all(format!("{line}\n").as_bytes()).context("type a line")?;
        let text = self.until_prompt(COMMAND).with_context(|| format!("in the guest: `{line}`"))?;
        // The line itself comes first, as the terminal shows it.
        Ok(text.split_once('\n').map_or(String::new(), |(_, said)| said.to_owned()))
    }

    /// A `ping` loses nothing, and other commands of the page say nothing.
    fn enter_and_check(&mut self, line: &str) -> Result<()> {
        let said = self.enter(line)?;
        let is_good = match line.starts_with("ping ") {
            true => said.contains(", 0% packet loss"),
            false => said.trim().is_empty(),
        };
        ensure!(is_good, "in the guest: `{line}`: {said}");
        Ok(())
    }
}

/// The page's lines, each as it stands.
pub fn lines(env: &Env<'_>) -> Result<String> {
    let page = Page::read()?;
    for program in ["ip", "nft"] {
        initrd::find_program(program)?;
    }
    let host = lay_out(env, &page.host)?;
    let network = Network::new()?;
    let mut command = network.host.command("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", SCRIPT]);
    let mut terminal = Terminal::start(command.arg(env.dir).arg(host), env.dir.join("terminal.log"))?;
    terminal.until_prompt(BOOT).context(NeverBooted)?;
    let mut pings = 0;
    for line in page.guest.lines() {
        terminal.enter_and_check(line)?;
        pings += u32::from(line.starts_with("ping "));
    }
    let last = page.guest.lines().next_back().unwrap_or_default();
    ensure!(last.starts_with("ping "), "the page's last line is `{last}`");
    network.bridge()?;
    terminal.enter_and_check("ping -c 3 10.77.0.1")?;
    terminal.keys.write_all(b"exit\n").context("type a line")?;
    let status = terminal.process.wait(COMMAND)?;
    ensure!(status.success(), "after `exit` the lines of the host end with {status}");
    let said = std::fs::read_to_string(&terminal.log)?;
    ensure!(said.contains("guest to port, bytes copied why: "), "no ledger at the end: {said}");
    ensure!(network.host.ip(&["link", "show", "dev", "tap0"]).is_err(), "tap0 is left");
    Ok(format!("{pings} pings, and one over a bridge"))
}

/// Puts the files where the page's lines look for them, below the test's folder. Returns the
/// script of the host's lines.
fn lay_out(env: &Env<'_>, lines: &str) -> Result<PathBuf> {
    by_hand::write(env.lab, env.machine.kernel, &env.dir.join("target/guest"))?;
    let release = env.dir.join("target/release");
    std::fs::create_dir_all(&release)?;
    symlink(std::fs::canonicalize(backend::program()?)?, release.join("zerowire"))?;
    let folder = env.dir.join("bin");
    std::fs::create_dir(&folder)?;
    let qemu = folder.join("qemu-system-x86_64");
    std::fs::write(&qemu, wrapper(&env.lab.assets.qemu(env.machine.qemu)?))?;
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755))?;
    let made: Vec<&str> = lines.lines().filter(|line| line.starts_with("make ")).collect();
    ensure!(made.len() == 1 && made[0].starts_with("make guest "), "what `make` builds: {made:?}");
    let lines = lines.lines().filter(|line| !line.starts_with("make "));
    let after = README.lines().find_map(|line| line.strip_prefix(AFTERWARDS)?.strip_suffix('`'));
    let after = after.context("README.md says nothing of the cleaning up")?;
    // The shell waits for the last words of `zerowire net`.
    let lines: Vec<&str> = lines.chain([after, "status=$?", "wait", "exit $status"]).collect();
    let script = env.dir.join("host.sh");
    std::fs::write(&script, lines.join("\n") + "\n")?;
    Ok(script)
}

/// A program that is this QEMU, with its firmware and libraries.
fn wrapper(qemu: &QemuFiles) -> String {
    let command = qemu.command();
    let mut text = "#!/bin/sh\n".to_owned();
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default();
        text += &format!("export {}='{}'\n", name.display(), value.display());
    }
    text += &format!("exec '{}'", qemu.program.display());
    for argument in command.get_args() {
        text += &format!(" '{}'", argument.display());
    }
    text + " \"$@\"\n"
}
