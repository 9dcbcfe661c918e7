"""The kinds of panels, and how each becomes Grafana's JSON.

A panel is (title, (width, height), description, queries) and what its kind takes; a row is 24 wide.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Dict, List, Optional, Tuple

from .promql import promql
from .style import GREEN, TEXT, override, steps

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24

LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
NO_LEGEND = {**LEGEND, "showLegend": False}
LAST_VALUE = {"calcs": ["lastNotNull"], "fields": "", "values": False}
TOOLTIP_OF_ONE = {"mode": "single", "sort": "none"}
TOOLTIP_OF_ALL = {"mode": "multi", "sort": "desc"}


@dataclass
class Query:
    """One query; `legend` is Grafana's format."""

    expr: str
    legend: str = ""
    is_instant: bool = False

    def json(self, idx, table_or_series):
        return {
            "refId": ref_id(idx),
            "datasource": DATASOURCE,
            "expr": promql(self.expr),
            "legendFormat": self.legend or "__auto",
            "editorMode": "code",
            "instant": self.is_instant,
            "range": not self.is_instant,
            "format": table_or_series,
        }


def query(expr, legend=""):
    """A query over the time that the dashboard shows."""
    return Query(expr, legend)


def instant(expr, legend=""):
    """A query of the last moment of that time."""
    return Query(expr, legend, is_instant=True)


def ref_id(idx):
    """Grafana's name of the query at this index: A, B, C …"""
    return chr(ord("A") + idx)


@dataclass
class Row:
    """A heading over the panels that follow."""

    title: str
    size: ClassVar[Tuple[int, int]] = (WIDTH, 1)

    def json(self, number, position):
        return {
            "type": "row",
            "id": number,
            "title": self.title,
            "collapsed": False,
            "gridPos": position,
            "panels": [],
        }


@dataclass
class Panel:
    """What every kind has. A kind adds its `options` and what it draws `custom` by field."""

    title: str
    size: Tuple[int, int]
    description: str
    queries: List[Query] = field(default_factory=list)
    unit: str = "short"
    thresholds: Optional[list] = None
    mappings: list = field(default_factory=list)
    overrides: list = field(default_factory=list)
    min: Optional[float] = None
    max: Optional[float] = None
    decimals: Optional[int] = None
    no_value: Optional[str] = None

    kind: ClassVar[str]
    color_mode: ClassVar[str] = "thresholds"
    default_thresholds: ClassVar[list] = GREEN
    format: ClassVar[str] = "time_series"

    def options(self) -> Dict:
        raise NotImplementedError

    def custom(self) -> Dict:
        return {}

    def field_overrides(self):
        return self.overrides

    def more(self):
        """Keys that only this kind has, after all others."""
        return {}

    def defaults(self):
        """How values are shown where no override says otherwise."""
        defaults = {
            "unit": self.unit,
            "custom": self.custom(),
            "mappings": self.mappings,
            "color": {"mode": self.color_mode},
            "thresholds": steps(self.thresholds or self.default_thresholds),
        }
        optional = {
            "min": self.min,
            "max": self.max,
            "decimals": self.decimals,
            "noValue": self.no_value,
        }
        for key, value in optional.items():
            if value is not None:
                defaults[key] = value
        return defaults

    def json(self, number, position):
        return {
            "type": self.kind,
            "id": number,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": position,
            "targets": [each.json(idx, self.format) for idx, each in enumerate(self.queries)],
            "fieldConfig": {"defaults": self.defaults(), "overrides": self.field_overrides()},
            "options": self.options(),
            **self.more(),
        }


@dataclass
class Stat(Panel):
    """A figure; one that is mapped to words colors its background. Legends stand next to their values."""

    kind = "stat"
    default_thresholds = TEXT

    def options(self):
        return {
            "reduceOptions": LAST_VALUE,
            "colorMode": "background" if self.mappings else "value",
            "graphMode": "none" if self.mappings else "area",
            "textMode": "value_and_name" if any(each.legend for each in self.queries) else "auto",
            "justifyMode": "center",
            "orientation": "auto",
            "wideLayout": True,
        }


@dataclass
class TimeSeries(Panel):
    """Lines, or bars, over time. `zero` keeps 0 in sight of values of either sign."""

    fill: int = 10
    stack: bool = False
    bars: bool = False
    zero: bool = False
    threshold_lines: bool = False

    kind = "timeseries"
    color_mode = "palette-classic"

    def options(self):
        return {"legend": LEGEND, "tooltip": TOOLTIP_OF_ALL}

    def custom(self):
        custom = {
            "drawStyle": "bars" if self.bars else "line",
            "lineWidth": 0 if self.bars else 1,
            "fillOpacity": 60 if self.bars else self.fill,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if self.stack else "none", "group": "A"},
            "axisCenteredZero": False,
            "thresholdsStyle": {"mode": "dashed" if self.threshold_lines else "off"},
        }
        if self.zero:
            custom |= {"axisSoftMin": 0, "axisSoftMax": 0}
        return custom


@dataclass
class StateTimeline(Panel):
    """When each series had which state."""

    kind = "state-timeline"

    def options(self):
        return {
            "mergeValues": True,
            "showValue": "auto",
            "alignValue": "center",
            "rowHeight": 0.85,
            "legend": NO_LEGEND,
            "tooltip": TOOLTIP_OF_ONE,
        }

    def custom(self):
        return {"fillOpacity": 80, "lineWidth": 0}


@dataclass
class Heatmap(Panel):
    """A field of colored cells, for many series: a line each, by time, at most `points` across."""

    points: int = 60

    kind = "heatmap"

    def options(self):
        return {
            "calculate": False,
            "cellGap": 0,
            "cellValues": {"unit": self.unit},
            "color": {
                "mode": "scheme",
                "scheme": "RdYlGn",
                "reverse": True,
                "steps": 64,
                "exponent": 0.5,
                "fill": "dark-orange",
                "min": self.min,
                "max": self.max,
            },
            "exemplars": {"color": "purple"},
            "filterValues": {},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "tooltip": {"mode": "single", "yHistogram": False},
            "yAxis": {"axisPlacement": "left", "reverse": False},
        }

    def custom(self):
        return {"scaleDistribution": {"type": "linear"}}

    def more(self):
        return {"maxDataPoints": self.points}


@dataclass
class Histogram(Panel):
    """How many series fall into each bucket."""

    bucket: float = 0.05

    kind = "histogram"
    color_mode = "palette-classic"

    def options(self):
        return {
            "bucketSize": self.bucket,
            "bucketOffset": 0,
            "combine": True,
            "legend": NO_LEGEND,
            "tooltip": TOOLTIP_OF_ONE,
        }

    def custom(self):
        return {"fillOpacity": 70, "lineWidth": 1}


@dataclass
class BarGauge(Panel):
    """A bar for each series."""

    kind = "bargauge"

    def options(self):
        return {
            "reduceOptions": LAST_VALUE,
            "displayMode": "lcd",
            "orientation": "horizontal",
            "showUnfilled": True,
            "valueMode": "color",
            "namePlacement": "auto",
            "sizing": "auto",
            "minVizWidth": 8,
            "minVizHeight": 16,
            "maxVizHeight": 120,
            "legend": NO_LEGEND,
            "text": {"titleSize": 14, "valueSize": 18},
        }


@dataclass
class Column:
    """A column of a table that a query fills; the query's labels are columns of their own."""

    name: str
    expr: str
    unit: Optional[str] = None
    cells: list = field(default_factory=list)
    is_hidden: bool = False


@dataclass
class Link:
    """Opens a dashboard from a column, with the variables `names` of that row."""

    column: str
    uid: str
    names: List[str]

    def override(self):
        variables = "".join(f"&var-{name}=${{__data.fields.{name}}}" for name in self.names)
        place = "${datasource:queryparam}&${cluster:queryparam}"
        url = f"/d/{self.uid}?{place}{variables}&${{__url_time_range}}"
        links = [{"title": f"Open this {self.column}", "url": url}]
        return override(self.column, ("links", links))


TO_RUN = Link("run", "stepmem-run", ["namespace", "run"])
TO_RANK = Link("rank", "stepmem-rank", ["namespace", "run", "rank"])


@dataclass
class Table(Panel):
    """A row for each set of labels, by the column `sort`, highest first (`-NAME`: lowest first)."""

    columns: List[Column] = field(default_factory=list)
    sort: str = ""
    link: Optional[Link] = None

    kind = "table"
    format = "table"

    def __post_init__(self):
        self.queries = [instant(column.expr, column.name) for column in self.columns]

    def options(self):
        by = {"displayName": self.sort.lstrip("-"), "desc": not self.sort.startswith("-")}
        return {"showHeader": True, "cellHeight": "sm", "sortBy": [by] if self.sort else []}

    def custom(self):
        return {"align": "auto", "cellOptions": {"type": "auto"}}

    def field_overrides(self):
        overrides = []
        for column in self.columns:
            unit = [("unit", column.unit)] if column.unit else []
            if unit or column.cells:
                overrides.append(override(column.name, *unit, *column.cells))
        return overrides + ([self.link.override()] if self.link else [])

    def more(self):
        """The queries become columns of one table; a row that one query lacks stays."""
        # Grafana names a column of values by its query, where there are several.
        values = [f"Value #{ref_id(idx)}" for idx in range(len(self.columns))]
        if len(values) == 1:
            values = ["Value"]
        hidden = {value: True for value, column in zip(values, self.columns) if column.is_hidden}
        organize = {
            "excludeByName": {"Time": True, **hidden},
            "renameByName": {value: each.name for value, each in zip(values, self.columns)},
            "indexByName": {},
            "includeByName": {},
        }
        return {
            "transformations": [
                {"id": "merge", "options": {}},
                {"id": "organize", "options": organize},
            ]
        }
