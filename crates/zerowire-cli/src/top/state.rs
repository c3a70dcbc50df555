//! What is on the screen, and what keys and samples change of it.

use std::cmp::Ordering;

use clap::ValueEnum;

use super::detail::detail;
use super::keys::TopKey;
use super::rates::{BothRates, ServerRates, VmRates, rates};
use super::sample::ServerSample;
use super::view;

/// By what VMs are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// By name.
    #[default]
    Name,
    /// Most bytes from the guest first.
    Transmit,
    /// Most bytes to the guest first.
    Receive,
    /// Most dropped frames first.
    Dropped,
    /// The smallest share of bytes that were not copied first.
    ZeroCopied,
}

impl SortKey {
    /// The order of two VMs. One whose figure is unknown comes last.
    fn compare(self, a: &VmRates, b: &VmRates) -> Ordering {
        // The smallest first.
        let figure = |vm: &VmRates| {
            let rates = vm.rates.as_ref();
            let figure = match self {
                Self::Name => None,
                Self::Transmit => rates.map(|r| -r.transmit.bytes),
                Self::Receive => rates.map(|r| -r.receive.bytes),
                Self::Dropped => rates.map(|r| -r.dropped_frames()),
                Self::ZeroCopied => rates.and_then(BothRates::zero_copied_ratio),
            };
            figure.unwrap_or(f64::INFINITY)
        };
        figure(a).total_cmp(&figure(b)).then_with(|| a.now.name.cmp(&b.now.name))
    }
}

/// How VMs are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sorting {
    pub key: SortKey,
    /// The other way round.
    pub is_reversed: bool,
}

impl Sorting {
    /// The VMs in order.
    pub fn sorted(self, rates: &ServerRates) -> Vec<&VmRates> {
        let mut vms: Vec<_> = rates.vms.iter().collect();
        vms.sort_unstable_by(|a, b| {
            let order = self.key.compare(a, b);
            if self.is_reversed { order.reverse() } else { order }
        });
        vms
    }

    /// Sorts by `key`; by the key that it has, the other way round.
    fn choose(&mut self, key: SortKey) {
        *self = Self { key, is_reversed: self.key == key && !self.is_reversed };
    }
}

/// What is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopPage {
    /// All VMs.
    #[default]
    Table,
    /// The selected VM, from this line on.
    Detail(usize),
}

/// What is done behind a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterKey {
    GoOn,
    Quit,
}

/// All that is drawn.
#[derive(Clone, Debug, Default)]
pub struct TopState {
    /// What is shown.
    pub rates: Option<ServerRates>,
    /// The latest sample, which may not be shown.
    last: Option<ServerSample>,
    pub sorting: Sorting,
    pub page: TopPage,
    /// Name of the VM that keys act on, and whose details are shown. It may be gone.
    pub selected: Option<String>,
    /// Whether the picture stands still.
    pub is_paused: bool,
    /// Why the last attempt gave no sample.
    pub problem: Option<String>,
    /// Columns and rows of the terminal.
    pub size: (usize, usize),
}

impl TopState {
    /// Without a sample, for a terminal of this size: columns and rows.
    pub fn new(sorting: Sorting, size: (usize, usize)) -> Self {
        Self { sorting, size, ..Self::default() }
    }

    /// Takes what the server said, or why it said nothing.
    pub fn take(&mut self, sample: Result<ServerSample, String>) {
        match sample {
            Ok(sample) => {
                if !self.is_paused {
                    self.rates = Some(rates(self.last.as_ref(), &sample));
                }
                self.last = Some(sample);
                self.problem = None;
            }
            Err(problem) => self.problem = Some(problem),
        }
    }

    /// The VMs in order.
    pub fn vms(&self) -> Vec<&VmRates> {
        self.rates.as_ref().map(|rates| self.sorting.sorted(rates)).unwrap_or_default()
    }

    /// The row that keys act on, among [`Self::vms`].
    pub fn selected_row(&self, vms: &[&VmRates]) -> usize {
        let named = |name: &String| vms.iter().position(|vm| vm.now.name == *name);
        self.selected.as_ref().and_then(named).unwrap_or(0)
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: TopKey) -> AfterKey {
        match (self.page, key) {
            (_, TopKey::Interrupt | TopKey::Char('q')) => return AfterKey::Quit,
            (_, TopKey::Char('p' | ' ')) => self.is_paused = !self.is_paused,
            (TopPage::Table, TopKey::Escape) => return AfterKey::Quit,
            (TopPage::Table, TopKey::Enter) => self.open(),
            (TopPage::Table, TopKey::Char(letter)) if self.sort_by(letter) => {}
            (TopPage::Table, key) => self.select(key),
            (TopPage::Detail(_), TopKey::Escape | TopKey::Enter) => self.page = TopPage::Table,
            (TopPage::Detail(first), key) => {
                let room = view::detail_room(self);
                let last = detail(self).len().saturating_sub(room);
                self.page = TopPage::Detail(moved(first, key, room, last));
            }
        }
        AfterKey::GoOn
    }

    fn sort_by(&mut self, letter: char) -> bool {
        let key = match letter {
            'n' => SortKey::Name,
            't' => SortKey::Transmit,
            'r' => SortKey::Receive,
            'd' => SortKey::Dropped,
            'z' => SortKey::ZeroCopied,
            _ => return false,
        };
        self.sorting.choose(key);
        true
    }

    /// Moves the selection.
    fn select(&mut self, key: TopKey) {
        let vms = self.vms();
        let row = moved(self.selected_row(&vms), key, view::table_room(self), vms.len().saturating_sub(1));
        self.selected = vms.get(row).map(|vm| vm.now.name.clone());
    }

    fn open(&mut self) {
        // The first one is selected if no key was pressed before.
        let vms = self.vms();
        self.selected = vms.get(self.selected_row(&vms)).map(|vm| vm.now.name.clone());
        if self.selected.is_some() {
            self.page = TopPage::Detail(0);
        }
    }
}

/// Where a key leads from line `at`, if a page has `room` lines and `last` is the last place.
fn moved(at: usize, key: TopKey, room: usize, last: usize) -> usize {
    let to = match key {
        TopKey::Up | TopKey::Char('k') => at.saturating_sub(1),
        TopKey::Down | TopKey::Char('j') => at + 1,
        TopKey::PageUp => at.saturating_sub(room),
        TopKey::PageDown => at + room,
        TopKey::Home => 0,
        TopKey::End => last,
        _ => at,
    };
    to.min(last)
}

#[cfg(test)]
mod tests;
