//! A page of plain text in the making: lines, wrapped paragraphs, and tables with aligned
//! columns. Everything that is added comes out clean, whatever data it holds.

use crate::format::clean::shortened;

/// Paragraphs have no longer line, in characters.
pub const COLUMNS: usize = 100;
/// Paragraphs have no shorter line, however narrow the terminal is, in characters.
const COLUMNS_MIN: usize = 40;
/// The longest line that is added as it is, in characters; a longer one loses its middle.
pub const LINE_CHARS_MAX: usize = 8192;
/// The longest paragraph, in characters; a longer one loses its middle.
pub const PARAGRAPH_CHARS_MAX: usize = 8192;
/// The longest text of a cell, in characters; a longer one loses its middle.
pub const CELL_CHARS_MAX: usize = 1024;
/// A column that is cut or wrapped for lack of space keeps so many characters.
const CELL_MIN: usize = 16;

/// The text so far, in whole lines.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    is_colored: bool,
    /// Columns of the reader's terminal; `None` where text goes elsewhere.
    columns: Option<usize>,
}

/// The spaces before the lines of a paragraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indent {
    /// The indent of the first line.
    pub first: usize,
    /// The indent of every other line.
    pub rest: usize,
}

impl Indent {
    /// Indents the first line by `first`, and the others by two more.
    pub const fn hanging(first: usize) -> Self {
        Self { first, rest: first + 2 }
    }
}

/// Returns a line broken between words, for a terminal of so many columns. A longer word, such as
/// a path, stays whole, and the sequence of a color takes no column.
pub fn broken(line: &str, columns: usize) -> String {
    let is_whole = |part: &str| width(&uncolored(part)) <= columns;
    let mut text = String::new();
    let mut rest = String::new();
    for word in line.split(' ') {
        let longer = if rest.is_empty() { word.to_owned() } else { format!("{rest} {word}") };
        if is_whole(&longer) || rest.trim().is_empty() {
            rest = longer;
        } else {
            text.push_str(&rest);
            text.push('\n');
            rest = format!("  {word}");
        }
    }
    text + &rest
}

/// Returns a text without the sequences of [`Color`].
fn uncolored(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default();
    let others = parts.map(|part| part.split_once('m').map_or(part, |(_, rest)| rest));
    std::iter::once(first).chain(others).collect()
}

impl Page {
    /// Returns an empty page; where `is_colored`, the colors of table cells are written as
    /// ANSI sequences.
    pub fn new(is_colored: bool) -> Self {
        Self { is_colored, ..Self::default() }
    }

    /// Fits the page to a terminal of so many columns; `None` leaves tables as wide as they
    /// are.
    #[must_use]
    pub fn within(self, columns: Option<usize>) -> Self {
        Self { columns, ..self }
    }

    /// Returns the text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Adds a line as it is, without the spaces at its end.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(&shortened(line.trim_end(), LINE_CHARS_MAX));
        self.text.push('\n');
    }

    /// Adds an empty line.
    pub fn blank(&mut self) {
        self.line("");
    }

    /// Adds a paragraph broken between words, or within a word that is longer than a line.
    pub fn paragraph(&mut self, indent: Indent, words: &str) {
        let columns = self.columns.unwrap_or(COLUMNS).clamp(COLUMNS_MIN, COLUMNS);
        let room = columns.saturating_sub(indent.first.max(indent.rest)).max(1);
        let mut line = " ".repeat(indent.first);
        let mut is_begun = false;
        let words = shortened(words, PARAGRAPH_CHARS_MAX);
        for word in words.split(' ').flat_map(|word| pieces(word, room)) {
            if is_begun && width(&line) + 1 + width(&word) > columns {
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

    /// Adds a table: its heads, then its rows. A column is as wide as its widest cell. On a
    /// terminal that is too narrow, droppable columns are left out and named below. Next,
    /// shortenable cells lose their middle; a last column of text wraps.
    pub fn table(&mut self, table: &Table) {
        let mut fitted = Fitted::new(table);
        if let Some(columns) = self.columns {
            fitted.fit(columns);
        }
        for row in fitted.lines() {
            self.row(&row, &fitted.columns);
        }
        if !fitted.dropped.is_empty() {
            let words = format!(
                "No space for: {}. A wider terminal shows more.",
                fitted.dropped.join(", ")
            );
            self.paragraph(Indent::hanging(1), &words);
        }
    }

    fn row(&mut self, row: &[Cell], columns: &[FittedColumn]) {
        let mut line = String::new();
        for (cell, FittedColumn { column, wide, .. }) in row.iter().zip(columns) {
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
        // The cells are clean, and their colors must stay.
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Returns a cell's text, in its color where that is wanted.
    fn shown(&self, cell: &Cell) -> String {
        match cell.color.filter(|_| self.is_colored && !cell.text.is_empty()) {
            Some(color) => color.paint(&cell.text),
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
    /// The column's least width, in characters.
    width_min: usize,
    /// The spaces before it.
    gap: usize,
    /// The order in which columns are left out for lack of space, the lowest first; `None`
    /// keeps it.
    drop: Option<u8>,
    /// Set when its cells may lose their middle for lack of space.
    is_shortenable: bool,
}

impl Column {
    /// Returns a column of text, with `gap` spaces before it.
    pub const fn left(gap: usize, head: &'static str) -> Self {
        Self { head, align: Align::Left, width_min: 0, gap, drop: None, is_shortenable: false }
    }

    /// Returns a column of figures, with `gap` spaces before it.
    pub const fn right(gap: usize, head: &'static str) -> Self {
        Self { align: Align::Right, ..Self::left(gap, head) }
    }

    /// Returns the same column, at least so many characters wide.
    #[must_use]
    pub const fn at_least(self, width_min: usize) -> Self {
        Self { width_min, ..self }
    }

    /// Returns the same column, which is left out where a terminal is too narrow: the lowest
    /// number first.
    #[must_use]
    pub const fn droppable(self, order: u8) -> Self {
        Self { drop: Some(order), ..self }
    }

    /// Returns the same column, whose cells lose their middle where a terminal is too narrow.
    #[must_use]
    pub const fn shortenable(self) -> Self {
        Self { is_shortenable: true, ..self }
    }
}

/// A table on its way into a page: the columns that are left, and how wide they are.
struct Fitted<'t> {
    table: &'t Table,
    columns: Vec<FittedColumn>,
    /// The heads of the columns that are left out.
    dropped: Vec<&'static str>,
}

#[derive(Clone, Copy)]
struct FittedColumn {
    column: Column,
    /// The column's place in a row of the table.
    idx: usize,
    /// Characters of its widest cell, or of what is left of it.
    wide: usize,
}

impl<'t> Fitted<'t> {
    fn new(table: &'t Table) -> Self {
        let columns = table.columns.iter().enumerate().map(|(idx, column)| {
            let cells = table.rows.iter().filter_map(|row| row.get(idx));
            let widest = cells.map(|cell| width(&cell.text)).max().unwrap_or_default();
            let wide = widest.max(width(column.head)).max(column.width_min);
            FittedColumn { column: *column, idx, wide }
        });
        Self { table, columns: columns.collect(), dropped: Vec::new() }
    }

    fn width(&self) -> usize {
        self.columns.iter().map(|fitted| fitted.column.gap + fitted.wide).sum()
    }

    /// Makes it at most so many characters wide, as far as its columns allow.
    fn fit(&mut self, columns_max: usize) {
        while self.width() > columns_max {
            let droppable = self.columns.iter().filter(|fitted| fitted.column.drop.is_some());
            let next = droppable.min_by_key(|fitted| fitted.column.drop).map(|next| next.idx);
            let Some(next) = next else { break };
            self.columns.retain(|fitted| fitted.idx != next);
            self.dropped.extend(self.table.columns.get(next).map(|column| column.head));
        }
        let excess = self.width().saturating_sub(columns_max);
        if let Some(cut) = self.columns.iter_mut().find(|fitted| fitted.column.is_shortenable) {
            cut.wide = cut.wide.saturating_sub(excess).max(CELL_MIN.min(cut.wide));
        }
        let excess = self.width().saturating_sub(columns_max);
        if let Some(last) =
            self.columns.last_mut().filter(|last| last.column.align == Align::Left)
        {
            last.wide = last.wide.saturating_sub(excess).max(CELL_MIN.min(last.wide));
        }
    }

    /// Returns the heads and the rows, in as many lines as they take.
    fn lines(&self) -> Vec<Vec<Cell>> {
        let heads = self.columns.iter().map(|fitted| Cell::from(fitted.column.head)).collect();
        let rows = self.table.rows.iter().flat_map(|row| self.row_lines(row));
        std::iter::once(heads).chain(rows).collect()
    }

    fn row_lines(&self, row: &[Cell]) -> Vec<Vec<Cell>> {
        let cells = self.columns.iter().map(|fitted| (fitted, row.get(fitted.idx)));
        let mut first: Vec<Cell> = cells
            .filter_map(|(fitted, cell)| {
                let mut cell = cell?.clone();
                if fitted.column.is_shortenable {
                    cell.text = shortened(&cell.text, fitted.wide);
                }
                Some(cell)
            })
            .collect();
        let is_whole = first.len() == self.columns.len();
        let Some((last, room)) = first.last_mut().zip(self.columns.last()).filter(|_| is_whole)
        else {
            return vec![first];
        };
        let mut parts = wrapped(&last.text, room.wide).into_iter();
        let color = last.color;
        last.text = parts.next().unwrap_or_default();
        let blank = vec![Cell::default(); self.columns.len() - 1];
        let further = parts.map(|text| [blank.clone(), vec![Cell { text, color }]].concat());
        let further: Vec<Vec<Cell>> = further.collect();
        std::iter::once(first).chain(further).collect()
    }
}

/// Returns the lines of a text of at most so many characters each, broken between words.
fn wrapped(text: &str, chars_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    if width(text) <= chars_max {
        return vec![text.to_owned()];
    }
    for word in text.split(' ').flat_map(|word| pieces(word, chars_max.max(1))) {
        match lines.last_mut() {
            Some(line) if width(line) + 1 + width(&word) <= chars_max => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// The side of a column at which its cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

/// A cell of a table, clean.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    color: Option<Color>,
}

impl Cell {
    /// Returns whether nothing stands in the cell.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the cell with more text behind it.
    #[must_use]
    pub fn with(mut self, more: &str) -> Self {
        self.text.push_str(&shortened(more, CELL_CHARS_MAX));
        self
    }

    /// Returns the same cell in a color.
    #[must_use]
    pub fn in_color(self, color: Option<Color>) -> Self {
        Self { color, ..self }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self { text: shortened(text, CELL_CHARS_MAX), color: None }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

/// A color of the terminal's own palette.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// Red, of what is critical.
    Red,
    /// Yellow, of warnings.
    Yellow,
    /// Cyan, of information.
    Cyan,
}

impl Color {
    /// Returns the text in this color.
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

/// Returns the number of columns of a clean text, one for each character.
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
    use crate::format::page::{COLUMNS, Cell, Color, Column, Indent, Page, Table};

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
    fn narrow_terminal_gets_fewer_columns_and_every_word_of_the_last_one() {
        let mut table = Table::new([
            Column::left(0, "DEVICE").shortenable(),
            Column::right(2, "STEP").droppable(2),
            Column::right(2, "PEAK").droppable(1),
            Column::left(2, "DIAGNOSIS"),
        ]);
        let device = format!("GPU-{}", "0".repeat(30));
        table.row([device.as_str(), "12", "4.00 GiB", "MEMORY CREEP, HIGH PRESSURE"]);
        let text = |columns| {
            let mut page = Page::default().within(columns);
            page.table(&table);
            page.into_text()
        };
        assert_eq!(
            text(Some(50)),
            "DEVICE                 DIAGNOSIS\n\
             GPU-000000…0000000000  MEMORY CREEP, HIGH PRESSURE\n \
             No space for: PEAK, STEP. A wider terminal shows\n   more.\n"
        );
        assert_eq!(
            text(Some(40)).lines().take(3).collect::<Vec<_>>(),
            [
                "DEVICE            DIAGNOSIS",
                "GPU-0000…0000000  MEMORY CREEP, HIGH",
                "                  PRESSURE"
            ]
        );
        assert_eq!(text(None).lines().count(), 2);
        assert!(text(None).contains("4.00 GiB"));
    }

    #[test]
    fn colors_are_written_only_where_they_are_wanted() {
        let table = || {
            let mut table = Table::new([Column::left(0, "A"), Column::left(1, "B")]);
            let red = Cell::from("r").in_color(Some(Color::Red));
            let empty = Cell::from("").in_color(Some(Color::Red));
            table.row([red, empty]);
            table
        };
        let text = |is_colored| {
            let mut page = Page::new(is_colored);
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
