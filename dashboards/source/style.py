"""Colors, thresholds and overrides that panels share."""

from .kinds import KINDS

# Thresholds: a color from a value on; None is from the lowest.
TEXT = [(None, "text")]
GREEN = [(None, "green")]
PRESSURE = [(None, "green"), (0.85, "yellow"), (0.92, "orange"), (0.97, "red")]
ETA = [(None, "red"), (1800, "orange"), (6 * 3600, "yellow"), (24 * 3600, "green")]
SKEW = [(None, "green"), (0.2, "orange"), (0.3, "red")]
CREEPING_RANKS = [(None, "green"), (1, "red")]
SILENT_RANKS = [(None, "green"), (1, "orange")]
SILENT_SECONDS = [(None, "green"), (120, "yellow"), (300, "orange")]
REFUSED_RATIO = [(None, "green"), (0.0001, "yellow"), (0.01, "red")]
EXPORTER_MEMORY = [(None, "green"), (24 << 20, "yellow"), (32 << 20, "red")]


def steps(thresholds):
    return {
        "mode": "absolute",
        "steps": [{"value": value, "color": color} for value, color in thresholds],
    }


def mappings(*states):
    """Shows a value as a word; each state is (value, text, color)."""
    options = {
        str(value): {"text": text, "color": color, "index": value}
        for value, text, color in states
    }
    return [{"type": "value", "options": options}]


SEVERITY = mappings(
    (-1, "not judged yet", "#5b6270"),
    (0, "healthy", "green"),
    (1, "info", "blue"),
    (2, "warning", "orange"),
    (3, "critical", "red"),
)
NVML_UP = mappings((0, "no NVML", "orange"), (1, "answers", "green"))
JUDGED = mappings((0, "not yet", "#5b6270"), (1, "yes", "green"))
# What `kinds.worst_kind` returns.
WORST_KIND = mappings(
    *((rank, kind.title, kind.color) for rank, kind in enumerate(reversed(KINDS), 1))
)


def override(name, *properties):
    """Properties of the series or column of a name, or of those that a /pattern/ matches."""
    matcher = "byRegexp" if name.startswith("/") else "byName"
    return {
        "matcher": {"id": matcher, "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties],
    }


def fixed(color):
    return ("color", {"mode": "fixed", "fixedColor": color})


def fill(percent):
    return ("custom.fillOpacity", percent)


def line_width(pixels):
    return ("custom.lineWidth", pixels)


DASHED = ("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
HIDDEN = ("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False})
CAPACITY = override("/^capacity/", fixed("red"), DASHED, fill(0), line_width(2))


def band(name):
    """Fills the area between the series `NAME low` and `NAME high`."""
    below = ("custom.fillBelowTo", f"{name} low")
    return [
        override(f"{name} low", line_width(0), fill(0), HIDDEN),
        override(f"{name} high", line_width(0), fill(25), below, HIDDEN),
    ]


def signal_with_band(signal, color):
    return [override(f"/^{signal}( low| high)?$/", fixed(color)), *band(signal)]


SIGNALS = [
    *signal_with_band("allocated", "green"),
    *signal_with_band("reserved", "blue"),
    *signal_with_band("outside_allocator", "orange"),
]
STEEPEST = [override("/^steepest/", fixed("orange")), *band("steepest")]
NESTED = [
    CAPACITY,
    override("device used", fixed("#5b6270")),
    override("process", fixed("purple")),
    override("reserved", fixed("blue")),
    override("peak allocated", fixed("yellow"), fill(0)),
    override("allocated", fixed("green"), fill(30)),
]
BY_KIND = [
    override(kind.title, fixed(kind.color)) for kind in KINDS
]


# How a table draws the cells of a column.
def cell(kind, **options):
    return ("custom.cellOptions", {"type": kind, **options})


WORST_KIND_CELLS = [("mappings", WORST_KIND), cell("color-background")]
SEVERITY_CELLS = [("mappings", SEVERITY), cell("color-background")]
PRESSURE_CELLS = [
    ("min", 0),
    ("max", 1),
    ("thresholds", steps(PRESSURE)),
    cell("gauge", mode="basic"),
]
ETA_CELLS = [("thresholds", steps(ETA)), cell("color-text")]
