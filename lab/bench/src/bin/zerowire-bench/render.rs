//! `zerowire-bench render`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use zerowire_bench::measurements::render;

#[derive(Args, Debug)]
#[command(after_help = "\
The pages are Markdown. A comment 'source', 'table' or 'chart' in a page names a file in FOLDER/data, and what of it stands below \
the comment. Charts go to FOLDER/figures.\n\
\n\
Exit status: 0 all is as the JSON has it, 1 with --check something is not, or a page can't be understood.\n\
\n\
Example:\n  zerowire-bench net --json measurements/data/net.json\n  zerowire-bench render measurements")]
pub struct RenderArgs {
    /// The folder with the pages.
    #[arg(value_name = "FOLDER", default_value = "measurements")]
    folder: PathBuf,
    /// Write nothing; end with status 1 if a page or a chart is not as its JSON has it.
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn run(args: &RenderArgs) -> Result<ExitCode> {
    let rendered = render(&args.folder, args.check)?;
    let mut out = std::io::stdout();
    for (file, command) in &rendered.missing {
        let file_path = args.folder.join("data").join(file);
        writeln!(out, "not measured: {file}: {command} --json {}", file_path.display())?;
    }
    for file in &rendered.unused {
        writeln!(out, "no page takes {}", args.folder.join("data").join(file).display())?;
    }
    let what = if args.check { "stale" } else { "written" };
    for path in &rendered.changed {
        writeln!(out, "{what}: {}", path.display())?;
    }
    let is_stale = args.check && !rendered.changed.is_empty();
    Ok(if is_stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
