//! A picture of character cells. Whatever a text has in it, what is drawn stays in its row and
//! moves no cursor.

use unicode_width::UnicodeWidthChar as _;

/// Columns and rows at most; a larger terminal stays empty beyond them.
const MAX_COLUMNS: usize = 500;
const MAX_ROWS: usize = 300;

/// How a cell looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    #[default]
    Plain,
    Bold,
    Dim,
    Reverse,
}

impl Look {
    /// What sets a terminal to it (ECMA-48, SGR).
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "\x1b[0m",
            Self::Bold => "\x1b[0;1m",
            Self::Dim => "\x1b[0;2m",
            Self::Reverse => "\x1b[0;7m",
        }
    }
}

/// A cell; None is the second half of a wide character.
type CanvasCell = (Option<char>, Look);

/// The cells of a terminal.
#[derive(Clone, Debug)]
pub struct Canvas {
    pub columns: usize,
    cells: Vec<Vec<CanvasCell>>,
}

impl Canvas {
    /// An empty one.
    pub fn new(columns: usize, rows: usize) -> Self {
        let columns = columns.min(MAX_COLUMNS);
        Self { columns, cells: vec![vec![(Some(' '), Look::Plain); columns]; rows.min(MAX_ROWS)] }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.cells.len()
    }

    /// Writes from a place on; what goes beyond the edge is cut off. Returns the next column.
    pub fn put(&mut self, row: usize, column: usize, text: &str, look: Look) -> usize {
        let mut at = column;
        for (c, width) in glyphs(text) {
            let cells = self.cells.get_mut(row).and_then(|row| row.get_mut(at..at + width));
            let Some(cells) = cells else { break };
            for (n, cell) in cells.iter_mut().enumerate() {
                *cell = ((n == 0).then_some(c), look);
            }
            at += width;
        }
        at
    }

    /// Gives all of a row a look.
    pub fn highlight(&mut self, row: usize, look: Look) {
        for cell in self.cells.get_mut(row).into_iter().flatten() {
            cell.1 = look;
        }
    }

    /// A row as a terminal takes it, without an end of line.
    pub fn row(&self, row: usize) -> String {
        let mut out = String::new();
        let mut now = None;
        for (c, look) in self.cells.get(row).into_iter().flatten() {
            if now.replace(*look) != Some(*look) {
                out.push_str(look.code());
            }
            out.extend(c);
        }
        out
    }

    /// The rows as text, without the spaces at their ends.
    #[cfg(test)]
    pub fn text(&self) -> Vec<String> {
        let row = |row: &Vec<CanvasCell>| row.iter().filter_map(|cell| cell.0).collect::<String>();
        self.cells.iter().map(|cells| row(cells).trim_end().to_owned()).collect()
    }
}

/// The characters of a text with their columns. Control characters are shown as a question mark;
/// those without a width, such as accents that combine, are left out.
fn glyphs(text: &str) -> impl Iterator<Item = (char, usize)> {
    let shown = text.chars().map(|c| if c.is_control() { '?' } else { c });
    shown.map(|c| (c, c.width().unwrap_or(0))).filter(|(_, width)| *width > 0)
}

/// Columns of a text.
pub fn columns_of(text: &str) -> usize {
    glyphs(text).map(|(_, width)| width).sum()
}

/// A text as it is shown, filled with spaces: in front (`is_right`) or behind.
pub fn padded(text: &str, columns: usize, is_right: bool) -> String {
    let space = " ".repeat(columns.saturating_sub(columns_of(text)));
    let shown: String = glyphs(text).map(|(c, _)| c).collect();
    if is_right { space + &shown } else { shown + &space }
}

/// A text of at most `columns` columns; a longer one is cut, and ends with an ellipsis.
pub fn shortened(text: &str, columns: usize) -> String {
    if columns_of(text) <= columns {
        return glyphs(text).map(|(c, _)| c).collect();
    }
    let mut room = columns.saturating_sub(1);
    let fits = |(_, width): &(char, usize)| {
        let fits = *width <= room;
        room = room.saturating_sub(*width);
        fits
    };
    glyphs(text).take_while(fits).map(|(c, _)| c).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_stays_in_its_place() {
        let mut canvas = Canvas::new(8, 2);
        assert_eq!(canvas.put(0, 2, "ab", Look::Plain), 4);
        assert_eq!(canvas.put(0, 6, "wxyz", Look::Bold), 8, "the edge cuts it off");
        canvas.put(5, 0, "below", Look::Plain);
        canvas.put(1, 90, "beyond", Look::Plain);
        assert_eq!(canvas.text(), ["  ab  wx", ""]);
        assert_eq!(canvas.row(0), "\x1b[0m  ab  \x1b[0;1mwx");
        canvas.highlight(0, Look::Reverse);
        assert_eq!(canvas.row(0), "\x1b[0;7m  ab  wx");
        assert_eq!((canvas.columns, canvas.rows()), (8, 2));
        let huge = Canvas::new(65_535, 65_535);
        assert_eq!((huge.columns, huge.rows()), (MAX_COLUMNS, MAX_ROWS));
    }

    #[test]
    fn a_text_moves_no_cursor_and_keeps_its_columns() {
        let mut canvas = Canvas::new(10, 1);
        canvas.put(0, 0, "a\x1b[2J\n\u{9b}", Look::Plain);
        assert_eq!(canvas.text(), ["a?[2J??"]);
        // A wide character takes two columns, and none is cut in half.
        let mut canvas = Canvas::new(5, 1);
        assert_eq!(canvas.put(0, 0, "日本語", Look::Plain), 4);
        assert_eq!(canvas.row(0), "\x1b[0m日本 ");
        assert_eq!((columns_of("日本"), columns_of("e\u{301}")), (4, 1));
    }

    #[test]
    fn texts_are_cut_and_filled_by_columns() {
        assert_eq!((shortened("abc", 3), shortened("abcd", 3)), ("abc".to_owned(), "ab…".to_owned()));
        assert_eq!(shortened("日本語", 4), "日…");
        assert_eq!((padded("日", 4, true), padded("a\n", 4, false)), ("  日".to_owned(), "a?  ".to_owned()));
    }
}
