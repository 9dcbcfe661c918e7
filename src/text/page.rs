//! A page of plain text in the making: lines, wrapped paragraphs, and tables with aligned columns. Everything that is
//! added comes out clean, whatever data it holds.

use crate::text::clean::clean;

/// Paragraphs have no longer line, in characters.
pub const COLUMNS: usize = 100;

/// The text so far, in whole lines.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    is_coloured: bool,
}

/// The spaces before the lines of a paragraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indent {
    /// Before the first line.
    pub first: usize,
    /// Before every other line.
    pub rest: usize,
}

impl Indent {
    /// Indents the first line by `first`, and the others by two more.
    pub const fn hanging(first: usize) -> Self {
        Self { first, rest: first + 2 }
    }
}

impl Page {
    /// Returns an empty page; `is_coloured` writes the colours of table cells as ANSI sequences.
    pub fn new(is_coloured: bool) -> Self {
        Self { text: String::new(), is_coloured }
    }

    pub fn into_text(self) -> String {
        self.text
    }

    /// Adds a line as it is, without the spaces at its end.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(&clean(line.trim_end()));
        self.text.push('\n');
    }

    /// Adds an empty line.
    pub fn blank(&mut self) {
        self.line("");
    }

    /// Adds a paragraph broken between words, or within a word that no line has room for.
    pub fn paragraph(&mut self, indent: Indent, words: &str) {
        let room = COLUMNS.saturating_sub(indent.first.max(indent.rest)).max(1);
        let mut line = " ".repeat(indent.first);
        let mut is_begun = false;
        let words = clean(words);
        for word in words.split(' ').flat_map(|word| pieces(word, room)) {
            if is_begun && width(&line) + 1 + width(&word) > COLUMNS {
                self.line(&line);
                line = " ".repeat(indent.rest);
                is_begun = false;
            }
            if is_begun {
                line.push(' ');
            }
            line.push_str(&word);
            is_begun = true;
        }
        self.line(&line);
    }

    /// Adds a table: its heads, then its rows. A column is as wide as its widest cell.
    pub fn table(&mut self, table: &Table) {
        let heads: Vec<Cell> =
            table.columns.iter().map(|column| Cell::from(column.head)).collect();
        let lines = || std::iter::once(&heads).chain(&table.rows);
        let widths: Vec<usize> = (0..table.columns.len())
            .map(|idx| {
                let widest =
                    lines().filter_map(|row| row.get(idx)).map(|cell| width(&cell.text));
                let width_min = table.columns.get(idx).map_or(0, |column| column.width_min);
                widest.fold(width_min, usize::max)
            })
            .collect();
        for row in lines() {
            let mut line = String::new();
            for ((cell, column), wide) in row.iter().zip(&table.columns).zip(&widths) {
                let padding = " ".repeat(wide.saturating_sub(width(&cell.text)));
                let (before, after) = match column.align {
                    Align::Left => ("", padding.as_str()),
                    Align::Right => (padding.as_str(), ""),
                };
                line.push_str(&" ".repeat(column.gap));
                line.push_str(before);
                line.push_str(&self.shown(cell));
                line.push_str(after);
            }
            // The cells are clean, and their colours must stay.
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }

    /// Returns a cell's text, in its colour where that is wanted.
    fn shown(&self, cell: &Cell) -> String {
        match cell.colour.filter(|_| self.is_coloured && !cell.text.is_empty()) {
            Some(colour) => colour.paint(&cell.text),
            None => cell.text.clone(),
        }
    }
}

/// A table in the making.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Returns a table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row; a shorter one than the table is wide leaves its last cells empty.
    pub fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: &'static str,
    align: Align,
    /// How wide it is at least, in characters.
    width_min: usize,
    /// The spaces before it.
    gap: usize,
}

impl Column {
    /// Returns a column of text, with `gap` spaces before it.
    pub const fn left(gap: usize, head: &'static str) -> Self {
        Self { head, align: Align::Left, width_min: 0, gap }
    }

    /// Returns a column of figures, with `gap` spaces before it.
    pub const fn right(gap: usize, head: &'static str) -> Self {
        Self { head, align: Align::Right, width_min: 0, gap }
    }

    /// Returns the same column, at least so many characters wide.
    #[must_use]
    pub const fn at_least(self, width_min: usize) -> Self {
        Self { width_min, ..self }
    }
}

/// Which side of a column its cells stand at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

/// A cell of a table, clean.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl Cell {
    /// Returns whether nothing stands in the cell.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the cell with more text behind it.
    #[must_use]
    pub fn with(mut self, more: &str) -> Self {
        self.text.push_str(&clean(more));
        self
    }

    /// Returns the same cell in a colour.
    #[must_use]
    pub fn in_colour(self, colour: Option<Colour>) -> Self {
        Self { colour, ..self }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self { text: clean(text).into_owned(), colour: None }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

/// A colour of the terminal's own palette.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Red,
    Yellow,
    Cyan,
}

impl Colour {
    /// Returns the text in this colour.
    pub fn paint(self, text: &str) -> String {
        format!("{}{text}\u{1b}[39m", self.sequence())
    }

    fn sequence(self) -> &'static str {
        match self {
            Self::Red => "\u{1b}[31m",
            Self::Yellow => "\u{1b}[33m",
            Self::Cyan => "\u{1b}[36m",
        }
    }
}

/// Returns at most so many columns of a line of a page, with all of its colours.
pub fn cut(line: &str, columns_max: usize) -> String {
    let (mut n_columns, mut is_sequence) = (0, false);
    let is_kept = |char: &char| {
        if is_sequence {
            is_sequence = !char.is_ascii_alphabetic();
            return true;
        }
        is_sequence = *char == '\u{1b}';
        n_columns += usize::from(!is_sequence);
        is_sequence || n_columns <= columns_max
    };
    line.chars().filter(is_kept).collect()
}

/// How many columns a clean text takes, a character each.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// A word in pieces of at most so many characters.
fn pieces(word: &str, chars_max: usize) -> Vec<String> {
    let chars: Vec<char> = word.chars().collect();
    if chars.is_empty() {
        return vec![String::new()];
    }
    chars.chunks(chars_max).map(|piece| piece.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use crate::text::page::{COLUMNS, Cell, Colour, Column, Indent, Page, Table, cut};

    #[test]
    fn line_that_is_cut_keeps_its_colours() {
        let line = format!("ab{}e", Colour::Red.paint("…d"));
        assert_eq!(cut(&line, 3), "ab\u{1b}[31m…\u{1b}[39m");
        assert_eq!(cut(&line, 5), line);
        assert_eq!(cut("", 3), "");
    }

    #[test]
    fn paragraphs_break_between_words() {
        let mut page = Page::default();
        page.paragraph(Indent::hanging(4), &"word ".repeat(60));
        let text = page.into_text();
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(text.matches("word").count(), 60);
        assert!(text.starts_with("    word"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("      word")).count(), 3);
    }

    #[test]
    fn words_that_no_line_has_room_for_break_and_lose_nothing() {
        let mut page = Page::default();
        page.paragraph(Indent { first: 2, rest: 90 }, &format!("run {}", "a".repeat(256)));
        let text = page.into_text();
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(text.matches('a').count(), 256);
    }

    #[test]
    fn tables_align_and_widen_for_their_cells() {
        let mut table = Table::new([
            Column::left(1, "NAME"),
            Column::right(2, "BYTES").at_least(7),
            Column::left(0, "").at_least(3),
            Column::left(1, "NOTE"),
        ]);
        table.row(["a longer name", "1", "", "x"]);
        table.row(["b", "1234567890"]);
        let mut page = Page::default();
        page.table(&table);
        assert_eq!(
            page.into_text(),
            " NAME                BYTES    NOTE\n \
             a longer name           1    x\n \
             b              1234567890\n"
        );
    }

    #[test]
    fn colours_are_written_only_where_they_are_wanted() {
        let table = || {
            let mut table = Table::new([Column::left(0, "A"), Column::left(1, "B")]);
            let red = Cell::from("r").in_colour(Some(Colour::Red));
            let empty = Cell::from("").in_colour(Some(Colour::Red));
            table.row([red, empty]);
            table
        };
        let text = |is_coloured| {
            let mut page = Page::new(is_coloured);
            page.table(&table());
            page.into_text()
        };
        assert_eq!(text(true), "A B\n\u{1b}[31mr\u{1b}[39m\n");
        assert_eq!(text(false), "A B\nr\n");
    }

    #[test]
    fn nothing_in_the_data_reaches_a_terminal_raw() {
        let raw = "a\u{1b}[31m\u{202e}b\nc";
        let mut page = Page::new(true);
        page.line(raw);
        page.paragraph(Indent::hanging(0), raw);
        let mut table = Table::new([Column::left(0, "")]);
        table.row([raw]);
        page.table(&table);
        let clean = "a\\u{1b}[31m\\u{202e}b\\nc\n";
        assert_eq!(page.into_text(), format!("{clean}{clean}\n{clean}"));
    }
}
