//! `zerowire replay`: sends the frames of a capture on an interface.
//!
//! ```text
//!  capture ── policy, timeline ── store ── port's memory        feed ── engine ── port
//!  (packets)  (frames, times)     (whole or in part)            (next frame, when due)
//! ```
//! A capture is read once before anything is sent, so errors in it show before. If its frames fit,
//! they go to the port's own memory and are sent from there in all passes.

mod ahead;
mod args;
mod capture;
mod clock;
mod engine;
mod feed;
mod interface;
mod load;
mod policy;
mod port;
mod progress;
mod report;
mod segment;
mod store;
mod timing;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use zerowire_cli::columns::{fit, width};
use zerowire_cli::outcome::JsonOutput;
use zerowire_cli::{WrongArguments, logging};

pub use args::ReplayArgs;

use self::capture::input::Input;
use self::engine::{ReplayEnd, ReplayPlan, run as send};
use self::feed::{Feed, FileFeed, MemoryFeed, Rest};
use self::interface::OutInterface;
use self::load::{Known, Loaded, Rules, load};
use self::port::{Opened, Wish, open};
use self::progress::ReplayProgress;
use self::report::{FrameSource, ReplaySetting, ReplaySummary};
use self::timing::Timeline;
use crate::stop::TransferStop;

/// Runs the command.
pub fn run(args: ReplayArgs) -> Result<ExitCode> {
    let is_sending = Arc::<AtomicBool>::default();
    let stop = stop_of(is_sending.clone())?;
    let interface = OutInterface::find(&args.interface)?;
    let input = Input::new(&args.file);
    let plan = plan(&args);
    let rules = Rules {
        policy: args.packets.policy(interface.mtu).map_err(WrongArguments::because)?,
        timeline: Timeline::new(&plan.pace, args.backwards, args.max_gap.map(args::seconds)),
        ignore_truncated: args.ignore_truncated,
    };
    let queue = args.port.queue().map_err(WrongArguments::because)?;
    let json = JsonOutput::open(args.json.as_deref(), &[&args.file])?;
    let loaded = load(&input, &rules, args.end.limit, args.max_memory)?;
    is_sending.store(true, Ordering::SeqCst);
    let mut wish = Wish {
        choice: args.port.port,
        interface: &interface,
        offload: args.packets.oversized.offload(),
        bypass_queue: args.port.bypass_queue,
        queue,
        memory: args.max_memory,
        longest: None,
    };
    let job = Job { args: &args, input: &input, interface: &interface, plan, stop: &stop, json };
    match loaded {
        Loaded::Whole(mut store, known) => {
            wish.longest = Some(known.longest);
            // Without a long frame no header is needed, and every port will do.
            wish.offload &= known.offloaded > 0;
            let opened = open(&wish, Some(&store))?;
            let source = if opened.resident { FrameSource::Resident } else { FrameSource::Memory };
            if opened.resident {
                store.forget_bytes();
            }
            job.send(opened, &mut MemoryFeed::new(store), source, Some(known), |_| Known::default())
        }
        Loaded::Checked(known) => {
            wish.longest = Some(known.longest);
            wish.offload &= known.offloaded > 0;
            let mut file = FileFeed::open(&input, &rules)?;
            job.send(open(&wish, None)?, &mut file, FrameSource::File, Some(known), |_| Known::default())
        }
        Loaded::Flowing(store, rest, known) => {
            if args.end.passes != 1 {
                bail!(
                    "{} is a pipe and longer than --max-memory, so that it can be sent only once: save it as a file, \
                     raise --max-memory, or leave out --loop",
                    input.name()
                );
            }
            let mut feed = Rest::start(store, *rest, known)?;
            job.send(open(&wish, None)?, &mut feed, FrameSource::Pipe, None, Rest::known)
        }
    }
}

/// How often, and how long, what was read is sent.
fn plan(args: &ReplayArgs) -> ReplayPlan {
    ReplayPlan {
        pace: args.pace.pace(),
        passes: (args.end.passes > 0).then_some(args.end.passes),
        limit: args.end.limit,
        duration: args.end.duration.map(args::seconds),
    }
}

/// What the ways of sending have in common.
struct Job<'a> {
    args: &'a ReplayArgs,
    input: &'a Input,
    interface: &'a OutInterface,
    plan: ReplayPlan,
    stop: &'a TransferStop,
    json: JsonOutput,
}

impl Job<'_> {
    /// Frames in all, where that is known.
    fn total(&self, known: Option<&Known>) -> Option<u64> {
        let all = known.zip(self.plan.passes).map(|(k, passes)| k.frames.saturating_mul(passes));
        [all, self.plan.limit].into_iter().flatten().min()
    }

    /// Sends, and tells of it. `known` is what is known of the whole capture; `rest` says what was
    /// known at the end of one that was longer.
    fn send<F: Feed>(
        &self,
        mut opened: Opened,
        feed: &mut F,
        source: FrameSource,
        known: Option<Known>,
        rest: impl FnOnce(&F) -> Known,
    ) -> Result<ExitCode> {
        let quiet = self.args.quiet;
        let path = opened.port.path();
        if !quiet {
            let (file, name) = (self.input.name(), self.plan.pace.name());
            tracing::info!("{file} to {} at {name}; path: {path}; {}", self.interface.name, source.name());
            for note in &opened.notes {
                tracing::info!("{note}");
            }
            if let Some(hours) = known.as_ref().and_then(|k| self.plan.pace.hours(k.span)) {
                tracing::warn!(
                    "a pass takes {hours:.1} hours as recorded: --max-gap shortens pauses, --speed all of it"
                );
            }
        }
        let before = self.interface.counted();
        let mut progress = ReplayProgress::new(self.total(known.as_ref()), quiet);
        let mut tick = |frames, bytes| progress.set(frames, bytes);
        let outcome = send(feed, opened.port.as_mut(), &self.plan, self.stop, &mut tick);
        drop(progress);
        let all_known = known.is_some();
        let known = known.unwrap_or_else(|| rest(feed));
        let counted = self.interface.counted().zip(before).and_then(|(now, before)| now.since(before));
        let setting = ReplaySetting {
            capture: self.input.name(),
            interface: self.interface.name.clone(),
            path,
            source,
            pace: self.plan.pace.name(),
        };
        let totals = opened.port.totals();
        let summary = ReplaySummary::new(setting, known, all_known, &outcome, totals, counted);
        let printed = self.print(&summary);
        match outcome.error {
            Some(e) => {
                if let Err(p) = printed {
                    tracing::error!("{p:#}");
                }
                Err(e)
            }
            None => printed.map(|()| match outcome.end {
                ReplayEnd::Signal(number) => ExitCode::from(128 + number),
                _ => ExitCode::SUCCESS,
            }),
        }
    }

    fn print(&self, summary: &ReplaySummary) -> Result<()> {
        if let JsonOutput::Stdout = self.json {
            return output(&(serde_json::to_string(summary)? + "\n"));
        }
        self.json.write(summary)?;
        if self.args.quiet { Ok(()) } else { output(&fit(&summary.text(), width(&std::io::stdout()))) }
    }
}

/// Prints, where somebody still reads.
fn output(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e).context("can't write to standard output"),
        _ => Ok(()),
    }
}

/// The signals that end sending, with a summary. Until `is_sending` is true one ends the program
/// right away: the capture may be a pipe that is waited for, and there is nothing to tell yet.
fn stop_of(is_sending: Arc<AtomicBool>) -> Result<TransferStop> {
    let first = move |number| {
        if !is_sending.load(Ordering::SeqCst) {
            logging::say(&format!("zerowire: stopped by signal {number} before the first frame was sent"));
            std::process::exit(128 + number);
        }
    };
    TransferStop::start(&[libc::SIGTERM, libc::SIGINT], first, || ())
}
