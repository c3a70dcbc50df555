//! libvirt's daemon, run by hand in namespaces of its own. So nothing of it is left behind, and the
//! machine's own one, if there is any, is not met.
//!
//! Its folders are empty file systems in memory. QEMU runs as the user `libvirt-qemu`, which is
//! there for the daemon alone. Processes that the daemon starts end with it (a PID namespace).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command::{self, Running, wait_for};
use crate::netns::Netns;

/// The user as whom QEMU runs, by the number that Debian gives it.
pub const USER: u32 = 64055;

/// For the daemon to answer: it asks QEMU what it can do at the first domain only.
const START: Duration = Duration::from_secs(60);

/// For a domain to be started, QEMU's capabilities included.
const CREATE: Duration = Duration::from_secs(240);

/// Makes the folders and starts the daemon. `$1` is the test's folder.
const SCRIPT: &str = r#"
set -e
for folder in /run /var/lib /var/cache /var/log /etc/libvirt; do mount -t tmpfs tmpfs $folder; done
# Without it libvirt does not ask QEMU for minutes what KVM can do.
[ ! -e /dev/kvm ] || mount --bind /dev/null /dev/kvm
for table in passwd group; do
    grep -v '^libvirt-qemu:' /etc/$table >"$1/$table"
    cat "$1/$table.more" >>"$1/$table"
    mount --bind "$1/$table" /etc/$table
done
cp "$1/qemu.conf" /etc/libvirt/qemu.conf
# The shell stays, to reap what the daemon leaves.
/usr/sbin/libvirtd --config "$1/libvirtd.conf" --pid-file "$1/libvirtd.pid" &
wait $!
"#;

/// A running daemon. It ends on drop, and all domains with it.
#[derive(Debug)]
pub struct Libvirt {
    process: Running,
    socket: PathBuf,
    log: PathBuf,
}

impl Libvirt {
    /// Whether the programs are there.
    pub fn is_installed() -> bool {
        ["/usr/sbin/libvirtd", "/usr/bin/virsh"].iter().all(|program| Path::new(program).exists())
    }

    /// Starts it in a network namespace and waits until it answers.
    ///
    /// # Errors
    /// It ends, or does not answer; the message holds its log.
    pub fn start(namespace: &Netns, dir: &Path) -> Result<Self> {
        let dir = dir.join("libvirt");
        std::fs::create_dir(&dir)?;
        // QEMU's user gets to the sockets below it.
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o711))?;
        let write = |name: &str, text: String| {
            std::fs::write(dir.join(name), text).with_context(|| format!("write {name}"))
        };
        write("passwd.more", format!("libvirt-qemu:x:{USER}:{USER}::/var/lib/libvirt:/usr/sbin/nologin\n"))?;
        write("group.more", format!("libvirt-qemu:x:{USER}:\n"))?;
        write(
            "qemu.conf",
            "user = \"libvirt-qemu\"\ngroup = \"libvirt-qemu\"\nsecurity_driver = \"none\"\n\
             stdio_handler = \"file\"\nnamespaces = []\ncgroup_controllers = []\n"
                .to_owned(),
        )?;
        write(
            "libvirtd.conf",
            format!(
                "listen_tls = 0\nauth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\nunix_sock_group = \"root\"\n\
                 unix_sock_dir = \"{}\"\n",
                dir.display()
            ),
        )?;
        let log = dir.join("libvirtd.log");
        let mut command = namespace.command("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            SCRIPT,
            "sh",
        ]);
        let process = Running::start_logged(command.arg(&dir), &log)?;
        let mut libvirt = Self { process, socket: dir.join("libvirt-sock"), log };
        wait_for("libvirt's socket", START, || {
            if let Some(status) = libvirt.process.ended()? {
                bail!("libvirtd ended with {status}: {}", libvirt.log_text());
            }
            Ok(libvirt.virsh(&["version"], command::SHORT).ok())
        })
        .with_context(|| libvirt.log_text())?;
        Ok(libvirt)
    }

    fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Starts a domain from its description.
    ///
    /// # Errors
    /// libvirt refuses it, or QEMU does not start; the message holds what libvirt said.
    pub fn create(&self, description: &Path) -> Result<()> {
        let file = description.to_str().context("a name in UTF-8")?;
        self.virsh(&["create", file], CREATE).with_context(|| self.log_text())?;
        Ok(())
    }

    fn virsh(&self, arguments: &[&str], limit: Duration) -> Result<String> {
        let uri = format!("qemu:///system?socket={}", self.socket.display());
        command::output(Command::new("virsh").arg("-c").arg(uri).args(arguments), limit)
    }
}
