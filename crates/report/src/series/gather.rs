//! Gathers the points of series from rows.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::series::error::SeriesError;
use crate::series::figure::{Figure, Unit};
use crate::series::model::{
    COLUMNS_MAX, Decoded, Format, LeftOut, POINTS_MAX, Point, SERIES_MAX, Series, Wanted, gaps,
};
use crate::series::names::Role;
use crate::series::scale::{check_below_capacity, scale};
use crate::series::time;
use stepmem_types::format::clean::{clean, shortened};

/// Figures of so many or more are bytes where nothing names a unit: as MiB they would be 16 TiB.
const BYTES_FROM: f64 = 16_777_216.0;
/// Characters of the names of columns in an error.
const COLUMNS_CHARS_MAX: usize = 400;

/// The series so far.
pub(super) struct Gather<'w> {
    wanted: &'w Wanted,
    columns: Vec<Column>,
    by_name: BTreeMap<String, usize>,
    series: BTreeMap<Key, Raw>,
    n_points: usize,
    n_rows: u64,
    /// A time that could not be read, and its column.
    bad_time: Option<(usize, String)>,
    pub(super) left_out: LeftOut,
}

struct Column {
    name: String,
    role: Role,
    unit: Option<Unit>,
    /// The column of its capacity.
    capacity: Option<usize>,
}

/// A column, and the labels of its rows.
type Key = (usize, Vec<(usize, String)>);

#[derive(Default)]
struct Raw {
    /// The unit that its cells have.
    unit: Option<Unit>,
    /// Time and number.
    points: Vec<(f64, f64)>,
    capacity: Option<(f64, Option<Unit>)>,
}

impl<'w> Gather<'w> {
    pub(super) fn new(wanted: &'w Wanted) -> Self {
        Self {
            wanted,
            columns: Vec::new(),
            by_name: BTreeMap::new(),
            series: BTreeMap::new(),
            n_points: 0,
            n_rows: 0,
            bad_time: None,
            left_out: LeftOut::default(),
        }
    }

    pub(super) fn wanted(&self) -> &'w Wanted {
        self.wanted
    }

    /// Returns the number of a column, which is new or known.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn column(&mut self, name: &str) -> Result<usize, SeriesError> {
        let name = name.trim();
        if let Some(idx) = self.by_name.get(name) {
            return Ok(*idx);
        }
        if self.columns.len() >= COLUMNS_MAX {
            return Err(SeriesError::TooManyColumns);
        }
        let (role, unit) = (Role::of(name, self.wanted), Unit::of_name(name));
        let idx = self.columns.len();
        self.columns.push(Column { name: name.to_owned(), role, unit, capacity: None });
        self.by_name.insert(name.to_owned(), idx);
        if role != Role::Other {
            self.pair();
        }
        Ok(idx)
    }

    /// Gives each column of values the column of capacity whose name begins most alike.
    fn pair(&mut self) {
        let whole = self.columns.iter().enumerate().filter(|(_, of)| of.role == Role::Capacity);
        let whole: Vec<(usize, String)> =
            whole.map(|(idx, of)| (idx, of.name.clone())).collect();
        let alike =
            |a: &str, b: &str| a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
        for column in &mut self.columns {
            let best = whole.iter().max_by_key(|(_, name)| alike(name, &column.name));
            column.capacity = best.map(|(idx, _)| *idx);
        }
    }

    /// Takes a row: numbers of columns, each with its cell.
    ///
    /// # Errors
    /// There are too many series or points.
    pub(super) fn row(&mut self, cells: &[(usize, Cow<'_, str>)]) -> Result<(), SeriesError> {
        self.n_rows += 1;
        let of_role = |role| {
            let columns = &self.columns;
            let is = move |idx: &usize| columns.get(*idx).is_some_and(|of| of.role == role);
            cells.iter().filter(move |(idx, _)| is(idx))
        };
        let mut times = of_role(Role::Time);
        let Some(time) = times.clone().find_map(|(_, cell)| time::read(cell)) else {
            if let (None, Some((idx, cell))) = (&self.bad_time, times.next()) {
                self.bad_time = Some((*idx, cell.clone().into_owned()));
            }
            self.left_out.rows_without_time += 1;
            return Ok(());
        };
        let labels: Vec<(usize, String)> = of_role(Role::Label)
            .filter(|(_, cell)| !cell.trim().is_empty())
            .map(|(idx, cell)| (*idx, clean(cell.trim()).into_owned()))
            .collect();
        let values: Vec<(usize, Figure)> = of_role(Role::Value)
            .chain(of_role(Role::LoneValue))
            .map(|(idx, cell)| (*idx, Figure::read(cell)))
            .collect();
        for (idx, figure) in values {
            let capacity = self.columns.get(idx).and_then(|of| of.capacity);
            let capacity = cells.iter().find(|(of, _)| Some(*of) == capacity);
            let capacity = capacity.map(|(of, cell)| (*of, Figure::read(cell)));
            match figure {
                Figure::Absent => {}
                Figure::Unreadable => self.left_out.figures_unreadable += 1,
                Figure::Number(number, unit) => {
                    let raw = self.raw((idx, labels.clone()))?;
                    raw.unit = raw.unit.or(unit);
                    raw.points.push((time, number));
                    if let Some((of, Figure::Number(number, unit))) = capacity {
                        let unit = unit.or_else(|| self.columns.get(of)?.unit);
                        self.take_capacity(&(idx, labels.clone()), (number, unit));
                    }
                }
            }
        }
        Ok(())
    }

    fn take_capacity(&mut self, key: &Key, capacity: (f64, Option<Unit>)) {
        if let Some(raw) = self.series.get_mut(key).filter(|_| capacity.0 > 0.0) {
            raw.capacity = Some(capacity);
        }
    }

    /// Takes one point of a column without labels.
    ///
    /// # Errors
    /// There are too many series or points.
    pub(super) fn point(
        &mut self,
        column: usize,
        time: f64,
        number: f64,
    ) -> Result<(), SeriesError> {
        let role = self.columns.get(column).map(|of| of.role);
        if !matches!(role, Some(Role::Value | Role::LoneValue)) {
            return Ok(());
        }
        match Figure::of(number, None) {
            Figure::Number(number, _) => {
                self.raw((column, Vec::new()))?.points.push((time, number));
            }
            Figure::Absent => {}
            Figure::Unreadable => self.left_out.figures_unreadable += 1,
        }
        Ok(())
    }

    /// Returns a series, which gets one more point.
    fn raw(&mut self, key: Key) -> Result<&mut Raw, SeriesError> {
        self.n_points += 1;
        if self.n_points > POINTS_MAX {
            return Err(SeriesError::TooManyPoints);
        }
        if self.series.len() >= SERIES_MAX && !self.series.contains_key(&key) {
            return Err(SeriesError::TooManySeries);
        }
        Ok(self.series.entry(key).or_default())
    }

    /// Returns the names of all columns, for an error.
    fn names(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|of| of.name.as_str()).collect();
        shortened(&format!("it has {}", names.join(", ")), COLUMNS_CHARS_MAX)
    }

    /// Returns the series.
    ///
    /// # Errors
    /// There are none that are wanted, or their figures have no meaning.
    pub(super) fn finish(mut self, format: Format) -> Result<Decoded, SeriesError> {
        self.check(format)?;
        self.keep_memory();
        let mut series = Vec::new();
        for ((column, labels), raw) in std::mem::take(&mut self.series) {
            let Some(of) = self.columns.get(column) else { continue };
            let labels = labels.into_iter().filter_map(|(idx, value)| {
                Some((clean(&self.columns.get(idx)?.name).into_owned(), value))
            });
            let name = clean(&of.name).into_owned();
            let series_of = Series {
                column: name,
                labels: labels.collect(),
                is_unit_guessed: false,
                capacity: None,
                points: Vec::new(),
            };
            let unit = self.wanted.unit.or(raw.unit).or(of.unit);
            series.push(self.in_bytes(series_of, raw, unit)?);
        }
        if series.is_empty() {
            return Err(SeriesError::NoFigures(self.values()));
        }
        Ok(Decoded { format, series, left_out: self.left_out })
    }

    /// Returns the names of the columns of values, for an error.
    fn values(&self) -> String {
        let is_value = |of: &&Column| matches!(of.role, Role::Value | Role::LoneValue);
        let values = self.columns.iter().filter(is_value).map(|of| of.name.as_str());
        shortened(&values.collect::<Vec<_>>().join(", "), COLUMNS_CHARS_MAX)
    }

    /// Checks that there is what is wanted.
    fn check(&self, format: Format) -> Result<(), SeriesError> {
        if self.columns.is_empty() {
            return Err(SeriesError::Empty);
        }
        let named = self.wanted.columns.iter().chain(&self.wanted.by).chain(&self.wanted.time);
        let of_table = |name: &&String| {
            format != Format::TensorBoard || self.wanted.columns.contains(name)
        };
        if let Some(name) =
            named.filter(of_table).find(|name| !self.by_name.contains_key(*name))
        {
            return Err(SeriesError::NoColumn { wanted: name.clone(), has: self.names() });
        }
        let has = |role| self.columns.iter().any(|of| of.role == role);
        if format != Format::TensorBoard && !has(Role::Time) {
            return Err(SeriesError::NoTime(self.names()));
        }
        if let Some((idx, value)) = &self.bad_time
            && self.left_out.rows_without_time == self.n_rows
        {
            let column = self.columns.get(*idx).map(|of| clean(&of.name).into_owned());
            let column = column.unwrap_or_default();
            return Err(SeriesError::NoTimes {
                column,
                value: value.clone(),
                n_rows: self.n_rows,
            });
        }
        if !has(Role::Value) && !has(Role::LoneValue) {
            return Err(SeriesError::NoMemory(self.names()));
        }
        let is_of_smi = self.columns.iter().any(|of| of.name.ends_with(']'));
        if is_of_smi && !has(Role::Label) && self.series.values().any(Raw::is_in_bursts) {
            return Err(SeriesError::Bursts(self.names()));
        }
        Ok(())
    }

    /// Leaves out the columns that may be memory where others surely are: without a name of
    /// memory, or without a unit.
    fn keep_memory(&mut self) {
        let columns = &self.columns;
        let role = |(column, _): &Key| columns.get(*column).map(|of| of.role);
        if self.series.keys().any(|key| role(key) == Some(Role::Value)) {
            self.series.retain(|key, _| role(key) == Some(Role::Value));
        }
        let has_unit = |(column, _): &Key, raw: &Raw| {
            raw.unit.or_else(|| columns.get(*column)?.unit).is_some()
        };
        let is_chosen = !self.wanted.columns.is_empty() || self.wanted.unit.is_some();
        if !is_chosen && self.series.iter().any(|(key, raw)| has_unit(key, raw)) {
            self.series.retain(|key, raw| has_unit(key, raw));
        }
    }

    /// Returns a series with its points in bytes, in order.
    fn in_bytes(
        &mut self,
        mut series: Series,
        raw: Raw,
        unit: Option<Unit>,
    ) -> Result<Series, SeriesError> {
        let greatest = raw.points.iter().map(|(_, number)| *number).fold(0.0, f64::max);
        series.is_unit_guessed = unit.is_none();
        let unit = unit.or_else(|| (greatest >= BYTES_FROM).then_some(Unit::Bytes(1.0)));
        let unit = unit.ok_or_else(|| SeriesError::NoUnit(series.name()))?;
        let found = raw.capacity.map(|(number, of)| match (of, unit) {
            (Some(Unit::Bytes(each)), _) | (_, Unit::Bytes(each)) => number * each,
            _ => number,
        });
        let each = scale(&mut series, unit, found, self.wanted)?;
        check_below_capacity(&series, greatest * each, self.wanted)?;
        let mut points = raw.points;
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        for (time, number) in points {
            let point = Point { time, bytes: number * each };
            match series.points.last_mut() {
                Some(last) if last.time >= time => {
                    *last = point;
                    self.left_out.points_repeated += 1;
                }
                _ => series.points.push(point),
            }
        }
        Ok(series)
    }
}

impl Raw {
    /// Returns whether many of its points are close to each other and many are not.
    fn is_in_bursts(&self) -> bool {
        let gaps = gaps(self.points.iter().map(|(time, _)| *time));
        let at = |share: usize| gaps.get(gaps.len().saturating_sub(1) * share / 100);
        at(33).zip(at(90)).is_some_and(|(short, long)| gaps.len() >= 8 && *short < long / 10.0)
    }
}
