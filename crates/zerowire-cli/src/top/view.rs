//! Draws a state: a plain function from what is known to cells.

use super::canvas::{Canvas, Look, columns_of, padded, shortened};
use super::detail::detail;
use super::figures::{NONE, count, duration, gigabits, share};
use super::rates::{BothRates, VmRates};
use super::state::{SortKey, TopPage, TopState};

/// Rows of the table's page that show no VM: title, head, keys.
const TABLE_FRAME: usize = 3;
/// Rows of the detail's page that show none of it: title, keys.
const DETAIL_FRAME: usize = 2;
/// Columns of a name on a terminal; a longer one is cut.
const NAME_COLUMNS: usize = 24;

const TABLE_KEYS: &str = "q quit  up/down select  enter details  p pause  sort: n name  t transmit  r receive  d dropped  z zero copy";
const DETAIL_KEYS: &str = "q quit  esc all VMs  up/down move  p pause";

/// The figures of a row of the table.
type TableRow = [String; 9];

const HEAD: [&str; 9] =
    ["name", "state", "tx frames", "tx Gb/s", "rx frames", "rx Gb/s", "dropped", "zero copy", "reason"];

/// Rows of VMs that the terminal has room for.
pub fn table_room(state: &TopState) -> usize {
    state.size.1.saturating_sub(TABLE_FRAME).max(1)
}

/// Lines of details that the terminal has room for.
pub fn detail_room(state: &TopState) -> usize {
    state.size.1.saturating_sub(DETAIL_FRAME).max(1)
}

/// The picture.
pub fn draw(state: &TopState) -> Canvas {
    let mut canvas = Canvas::new(state.size.0, state.size.1);
    canvas.put(0, 0, &title(state), Look::Bold);
    let keys = match state.page {
        TopPage::Table => {
            draw_table(&mut canvas, state);
            TABLE_KEYS
        }
        TopPage::Detail(first) => {
            for (n, line) in detail(state).iter().skip(first).take(detail_room(state)).enumerate() {
                canvas.put(n + 1, 0, line, Look::Plain);
            }
            DETAIL_KEYS
        }
    };
    let last = canvas.rows().saturating_sub(1);
    let (text, look) = match &state.problem {
        Some(problem) => (format!("trying again: {problem}"), Look::Reverse),
        None => (keys.to_owned(), Look::Dim),
    };
    canvas.put(last, 0, &padded(&text, canvas.columns, false), look);
    canvas
}

fn title(state: &TopState) -> String {
    let Some(rates) = &state.rates else { return "zerowire top".to_owned() };
    let mut title = format!("zerowire {}  {} VMs", rates.version, rates.vms.len());
    title += &format!("  up {}", duration(rates.uptime_seconds));
    if let Some(cpus) = rates.cpus {
        title += &format!("  CPU {:.0} %", cpus * 100.0);
    }
    let (key, reversed) = (state.sorting.key, if state.sorting.is_reversed { ", reversed" } else { "" });
    title += &format!("  by {}{reversed}", sort_word(key));
    if state.is_paused {
        title += "  PAUSED";
    }
    title
}

fn sort_word(key: SortKey) -> &'static str {
    match key {
        SortKey::Name => "name",
        SortKey::Transmit => "transmit",
        SortKey::Receive => "receive",
        SortKey::Dropped => "dropped",
        SortKey::ZeroCopied => "zero copy",
    }
}

fn draw_table(canvas: &mut Canvas, state: &TopState) {
    let (vms, room) = (state.vms(), table_room(state));
    let selected = state.selected_row(&vms);
    let first = selected / room * room;
    let shown: Vec<_> = vms.iter().skip(first).take(room).map(|vm| row(vm, NAME_COLUMNS)).collect();
    for (n, line) in lines(&shown).iter().enumerate() {
        canvas.put(n + 1, 0, line, if n == 0 { Look::Bold } else { Look::Plain });
    }
    if vms.is_empty() {
        canvas.put(2, 0, "no VMs", Look::Dim);
    } else {
        canvas.highlight(selected - first + 2, Look::Reverse);
    }
}

/// All VMs as plain text.
pub fn plain(vms: &[&VmRates]) -> String {
    if vms.is_empty() {
        return "no VMs\n".to_owned();
    }
    let rows: Vec<_> = vms.iter().map(|vm| row(vm, usize::MAX)).collect();
    lines(&rows).into_iter().map(|line| line + "\n").collect()
}

fn row(vm: &VmRates, name_columns: usize) -> TableRow {
    let name = shortened(&vm.now.name, name_columns);
    let state = vm.now.condition().to_owned();
    let Some(rates) = &vm.rates else {
        let none = || NONE.to_owned();
        return [name, state, none(), none(), none(), none(), none(), none(), none()];
    };
    let BothRates { transmit, receive } = rates;
    [
        name,
        state,
        count(transmit.frames),
        gigabits(transmit.bytes),
        count(receive.frames),
        gigabits(receive.bytes),
        count(rates.dropped_frames()),
        share(rates.zero_copied_ratio()),
        rates.reason().unwrap_or(NONE).to_owned(),
    ]
}

/// The head and the rows, with columns as wide as they need. Figures stand at the right.
fn lines(rows: &[TableRow]) -> Vec<String> {
    let head = HEAD.map(str::to_owned);
    let all = || std::iter::once(&head).chain(rows);
    let widths: Vec<_> =
        (0..HEAD.len()).map(|n| all().map(|row| columns_of(&row[n])).max().unwrap_or(0)).collect();
    let line = |row: &TableRow| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(n, (cell, width))| padded(cell, *width, (2..=7).contains(&n)));
        cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    all().map(line).collect()
}

#[cfg(test)]
mod tests;
