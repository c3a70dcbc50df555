//! Options about captures.

use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use zerowire_capture::{
    BadFilter, Capture, CaptureError, CaptureFilter, CaptureOptions, CaptureRotation, CaptureTarget,
    MAX_SNAPLEN,
};
use zerowire_cli::WrongArguments;

use crate::printer::{PrintTarget, Printer};
use crate::spec;

/// How long the end waits for what is left to be written.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is captured, and where to.
#[derive(Args, Clone, Debug)]
pub struct PcapArgs {
    /// Capture what all VMs send and receive, as pcapng, which Wireshark and tcpdump read. FILE is
    /// made, or emptied if it exists; '-' is standard output, and statistics go to standard error
    /// then. VMs never wait for the capture: it counts what it lacks.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Bytes to capture of each frame or packet, 1 to 262144: 128 hold the headers.
    #[arg(long, value_name = "BYTES", default_value_t = MAX_SNAPLEN, requires = "pcap",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SNAPLEN)))]
    pcap_snaplen: u32,
    /// Begin with another FILE before it has more than SIZE bytes (1M or more): it becomes FILE.1,
    /// what was FILE.1 becomes FILE.2, and so on. The oldest one beyond FILES in all (2 to 1000)
    /// goes.
    #[arg(long, value_name = "SIZE,FILES", requires = "pcap", value_parser = spec::rotation)]
    pcap_rotate: Option<CaptureRotation>,
    /// Capture the VM of this name, and no others; repeat for more.
    #[arg(long, value_name = "NAME", requires = "pcap")]
    pcap_vm: Vec<String>,
    /// Capture what passes this filter: a part of what pcap-filter(7) has, such as 'port 443 and
    /// not inbound'. docs/capture.md has the words of each device.
    #[arg(long, value_name = "FILTER", requires = "pcap")]
    pcap_filter: Option<String>,
}

impl PcapArgs {
    fn target(&self) -> Option<CaptureTarget> {
        self.pcap.as_ref().map(|path| match path.as_os_str() == "-" {
            true => CaptureTarget::Stdout,
            false => CaptureTarget::File(path.clone()),
        })
    }

    /// What is captured of packets of this link type, if anything. `vms` are the names of all VMs,
    /// unless others may come.
    pub fn options(&self, link: u16, vms: Option<Vec<&str>>) -> Result<Option<CaptureOptions>> {
        let Some(target) = self.target() else { return Ok(None) };
        if let Some(vms) = vms
            && let Some(name) = self.pcap_vm.iter().find(|name| !vms.contains(&name.as_str()))
        {
            let text = format!("--pcap-vm {name}: no VM is named '{name}': {}", vms.join(", "));
            return Err(WrongArguments(text).into());
        }
        if target == CaptureTarget::Stdout && std::io::stdout().is_terminal() {
            let text = "--pcap -: standard output is a terminal; give a file, or '| wireshark -k -i -'";
            return Err(WrongArguments(text.to_owned()).into());
        }
        let (snaplen, rotation) = (self.pcap_snaplen, self.pcap_rotate);
        let filter = self.pcap_filter.as_deref().map(|text| CaptureFilter::parse(text, link)).transpose();
        let filter = filter.map_err(|e: BadFilter| WrongArguments(format!("--pcap-filter: {e}")))?;
        let options = CaptureOptions::new(target).snaplen(snaplen).rotation(rotation);
        Ok(Some(options.only(self.pcap_vm.clone()).filter(filter)))
    }

    /// What prints statistics beside the capture.
    pub fn printer(&self) -> Printer {
        Printer::to(match self.target() {
            Some(CaptureTarget::Stdout) => PrintTarget::Stderr,
            _ => PrintTarget::Stdout,
        })
    }
}

/// Waits until somebody reads the pipe that the capture goes to, if it goes to one. A program that
/// does that before it blocks signals is ended by them meanwhile.
pub fn await_reader(options: &CaptureOptions) -> Option<File> {
    let CaptureTarget::File(path) = &options.target else { return None };
    if !std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo()) {
        return None;
    }
    tracing::info!("{}: waiting until a program reads the pipe", options.target);
    // Where that fails the capture says why.
    File::options().write(true).open(path).ok()
}

/// Begins with the capture that the command line asks for, if it does.
pub fn start(options: Option<&CaptureOptions>) -> Result<Option<Arc<Capture>>> {
    let Some(options) = options else { return Ok(None) };
    let capture = begin(options)?;
    tracing::info!("capturing to {}", options.target);
    Ok(Some(capture))
}

/// Begins with a capture.
pub fn begin(options: &CaptureOptions) -> Result<Arc<Capture>, CaptureError> {
    Ok(Arc::new(Capture::start(options, concat!("zerowire ", env!("CARGO_PKG_VERSION")))?))
}

/// Ends a capture to which no VM's frames go any more.
pub fn finish(capture: Option<&Arc<Capture>>) {
    if capture.is_some_and(|capture| !capture.finish(PATIENCE)) {
        tracing::error!("the end of the capture is lost: nobody took it within {PATIENCE:?}");
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use zerowire_capture::{LINKTYPE_ETHERNET, LINKTYPE_VSOCK};

    use super::*;

    /// The devices that take this filter, as the page names them.
    fn devices(filter: &str) -> String {
        let takes = |link| CaptureFilter::parse(filter, link).is_ok();
        let all = [("net", LINKTYPE_ETHERNET), ("vsock", LINKTYPE_VSOCK)];
        let taken: Vec<_> = all.iter().filter(|(_, link)| takes(*link)).map(|(name, _)| *name).collect();
        taken.join(", ")
    }

    #[test]
    fn the_help_of_both_devices_has_a_filter_for_both() {
        let command = PcapArgs::augment_args(clap::Command::new("a"));
        let option = command.get_arguments().find(|arg| arg.get_id() == "pcap_filter").expect("an option");
        let help = option.get_help().expect("a text").to_string();
        let filter = help.split('\'').nth(1).expect("an example");
        assert_eq!(devices(filter), "net, vsock", "{filter}");
    }

    #[test]
    fn the_page_says_which_device_takes_each_word() {
        let values = [
            ("ADDRESS/BITS", "10.0.0.0/8"),
            ("ADDRESS", "10.0.0.1"),
            ("MAC", "52:54:00:00:00:01"),
            ("FIRST-LAST", "1-2"),
            ("NUMBER", "3"),
            ("BYTES", "60"),
        ];
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/capture.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let (_, table) = page.split_once("| word | device | what it is about |").expect("a table");
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let mut checked = 0;
        for row in rows {
            let columns: Vec<_> = row.split(" | ").collect();
            for word in columns[0].split('`').skip(1).step_by(2) {
                let filter = values.iter().fold(word.to_owned(), |text, (from, to)| text.replace(from, to));
                assert_eq!(devices(&filter), columns[1], "{filter}");
                checked += 1;
            }
        }
        assert_eq!(checked, 21);
    }
}
