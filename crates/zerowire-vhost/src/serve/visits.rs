//! Which front ends the log hears of. One that is refused, or lacks what it wants, comes again and
//! again for good.
//!
//! A visit is short if it ends at once. Of short ones in a row in which the same was refused and
//! that end in the same way, the log hears of the first ones, and then of one a minute. The lines
//! of another one wait. The log hears them as soon as that is longer than a short visit, or ends
//! otherwise than those before it.

use std::time::{Duration, Instant};

use tracing::Level;

use super::pace::TELLING;
use crate::news::News;

/// Longer visits are not short.
const SHORT: Duration = Duration::from_secs(1);

/// Lines of a visit that can wait, and that are compared. Further ones are written at once.
const LINES: usize = 8;

/// What a visit's end says to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VisitEnd {
    /// It.
    Told,
    /// It, and that one a minute of the next ones like it follows.
    ToldLast,
    /// Nothing.
    Untold,
}

/// The visits of front ends to one VM.
#[derive(Debug, Default)]
pub(super) struct Visits {
    /// When the present one began; None where it began in another process.
    began: Option<Instant>,
    /// True: the log has not heard of the present one.
    untold: bool,
    /// Short ones in a row that were alike.
    alike: u32,
    /// What was refused in them, and how they ended.
    how: String,
    news: News,
}

impl Visits {
    /// A front end has connected. Whether the log hears of it now.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.began = Some(now);
        self.untold = self.alike >= TELLING && !self.news.is_due(now);
        !self.untold
    }

    /// Goes on with a session of another process.
    pub(super) fn go_on(&mut self) {
        *self = Self::default();
    }

    /// How long until the log hears of the present one; None where it has.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        let stays = now.saturating_duration_since(self.began.filter(|_| self.untold)?);
        Some(SHORT.saturating_sub(stays))
    }

    /// Whether the log hears of the present one now, since it has stayed.
    pub(super) fn stays(&mut self, now: Instant) -> bool {
        let stays = self.due(now) == Some(Duration::ZERO);
        if stays {
            (self.untold, self.alike) = (false, 0);
        }
        stays
    }

    /// The present one ends: `how` has its lines and its end.
    pub(super) fn end(&mut self, how: &str, now: Instant) -> VisitEnd {
        let is_short = self.began.is_some_and(|began| now.saturating_duration_since(began) < SHORT);
        let is_alike = is_short && self.alike > 0 && self.how == how;
        if !is_alike {
            (self.alike, self.how) = (0, how.to_owned());
        }
        self.alike = if is_short { self.alike.saturating_add(1) } else { 0 };
        match (is_alike && self.untold, self.alike == TELLING) {
            (true, _) => VisitEnd::Untold,
            (false, true) => VisitEnd::ToldLast,
            (false, false) => VisitEnd::Told,
        }
    }
}

/// What the log has to hear of the present visit.
#[derive(Debug, Default)]
pub(super) struct VisitLines {
    /// True: they are not written yet.
    wait: bool,
    /// The first ones that differ.
    first: Vec<(Level, String)>,
}

impl VisitLines {
    /// Those of another visit.
    pub(super) fn begin(&mut self, wait: bool) {
        *self = Self { wait, first: Vec::new() };
    }

    pub(super) fn add(&mut self, name: &str, level: Level, text: String) {
        let is_new = self.first.iter().all(|(_, line)| *line != text);
        let has_room = self.first.len() < LINES;
        if !self.wait || (is_new && !has_room) {
            write(name, level, &text);
        }
        if is_new && has_room {
            self.first.push((level, text));
        }
    }

    /// Writes those that wait, and lets none wait any more.
    pub(super) fn tell(&mut self, name: &str) {
        if std::mem::take(&mut self.wait) {
            self.first.iter().for_each(|(level, text)| write(name, *level, text));
        }
    }

    /// What visits are compared by.
    pub(super) fn texts(&self) -> String {
        self.first.iter().map(|(_, text)| format!("{text}\n")).collect()
    }
}

pub(super) fn write(name: &str, level: Level, text: &str) {
    match level {
        Level::ERROR => tracing::error!("{name}: {text}"),
        Level::WARN => tracing::warn!("{name}: {text}"),
        _ => tracing::info!("{name}: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the log hears of each visit: of its beginning, of its end.
    fn told(visits: &mut Visits, how: &str, at: Instant, stay: Duration) -> (bool, VisitEnd) {
        let begin = visits.begin(at);
        (begin, visits.end(how, at + stay))
    }

    #[test]
    fn short_visits_that_end_alike_are_told_of_once_a_minute() {
        let (mut visits, start, short) = (Visits::default(), Instant::now(), Duration::from_millis(1));
        // Two a second, for three minutes.
        let all: Vec<_> = (0..360)
            .map(|n| told(&mut visits, "left", start + n * Duration::from_millis(500), short))
            .collect();
        assert_eq!(all[..3], [(true, VisitEnd::Told), (true, VisitEnd::Told), (true, VisitEnd::ToldLast)]);
        assert_eq!(all.iter().filter(|(begin, _)| *begin).count(), 3 + 3);
        assert!(all[3..].iter().all(|(begin, end)| *begin == (*end != VisitEnd::Untold)), "{all:?}");

        // The log hears of another end, and of the ones like it.
        let now = start + Duration::from_secs(180) + short;
        assert_eq!(told(&mut visits, "refused", now, short), (false, VisitEnd::Told));
        assert_eq!(told(&mut visits, "refused", now, short), (true, VisitEnd::Told));
    }

    #[test]
    fn a_front_end_that_stays_is_told_of() {
        let (mut visits, start) = (Visits::default(), Instant::now());
        for _ in 0..5 {
            told(&mut visits, "left", start, Duration::ZERO);
        }
        assert!(!visits.begin(start) && !visits.stays(start + SHORT / 4));
        assert_eq!(visits.due(start + SHORT / 4), Some(SHORT * 3 / 4));
        assert!(visits.stays(start + SHORT), "now");
        assert_eq!((visits.due(start + SHORT), visits.stays(start + SHORT)), (None, false), "once");
        assert_eq!(visits.end("left", start + SHORT), VisitEnd::Told);
        assert_eq!(told(&mut visits, "left", start, Duration::ZERO), (true, VisitEnd::Told));
        // Nobody knows when a session of another process began.
        visits.go_on();
        assert_eq!(visits.end("left", start), VisitEnd::Told);
    }
}
