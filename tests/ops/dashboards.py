"""Checks dashboards/: build.py writes them, Grafana's own schema keeps all of them, they show the diagnoses that there are,
and they follow our conventions.

The schema is that of the Grafana Foundation SDK: each dashboard is converted to its types and back. A key that they do
not have (a misspelled one, an option of another plugin) is lost in the conversion.
"""

import json
import pathlib
import re
import subprocess
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboards"
DIAGNOSES = ROOT / "docs/diagnoses.md"
UIDS = {"stepmem-run", "stepmem-rank", "stepmem-fleet", "stepmem-exporter"}
JOINS = {"joinByField", "joinByLabels", "concatenate", "seriesToColumns"}
"""Transformations that lose rows, or mix them up, when a series is missing."""


def main():
    register_default_plugins()
    problems = built() + planted()
    paths = sorted(FOLDER.glob("*.json"))
    problems += diagnoses({path.stem: json.loads(path.read_text()) for path in paths}, DIAGNOSES.read_text())
    problems += planted_diagnosis({path.stem: json.loads(path.read_text()) for path in paths})
    if {path.stem for path in paths} != UIDS:
        problems.append(f"dashboards: {[path.stem for path in paths]} are not {sorted(UIDS)}")
    for path in paths:
        dashboard = json.loads(path.read_text())
        problems += [f"{path.name}: {problem}" for problem in [*lost_by_the_schema(dashboard), *conventions(dashboard, path.stem)]]
    sys.exit("\n".join(problems) if problems else 0)


def built():
    done = subprocess.run([sys.executable, FOLDER / "build.py", "--check"], capture_output=True, text=True)
    return [done.stderr.strip()] if done.returncode else []


def lost_by_the_schema(dashboard):
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    return [f"{path} is not in Grafana's schema" for path in lost(dashboard, back)]


def planted():
    """The schema must notice a misspelled key at every depth; otherwise a pass means nothing."""
    dashboard = json.loads((FOLDER / "stepmem-run.json").read_text())
    panel = next(panel for panel in dashboard["panels"] if panel["type"] == "timeseries")
    for place in [dashboard, panel, panel["options"], panel["targets"][0], panel["fieldConfig"]["defaults"]["custom"]]:
        place["misspelled"] = 1
        found = lost_by_the_schema(dashboard)
        if len(found) != 1 or "misspelled" not in found[0]:
            return [f"the schema does not see a planted key: {found}"]
        del place["misspelled"]
    return []


def lost(ours, back, path=""):
    if isinstance(ours, dict) and isinstance(back, dict):
        for key, value in ours.items():
            yield from lost(value, back[key], f"{path}.{key}") if key in back else [f"{path}.{key}"]
    elif isinstance(ours, list) and isinstance(back, list) and len(ours) == len(back):
        for i, (one, other) in enumerate(zip(ours, back)):
            yield from lost(one, other, f"{path}[{i}]")
    elif ours != back:
        yield path


def legends(dashboard):
    """Every legend and title of an annotation with its query."""
    yield from ((target.get("legendFormat", ""), target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", []))
    yield from ((annotation["titleFormat"], annotation["expr"]) for annotation in dashboard["annotations"]["list"] if "expr" in annotation)


def diagnoses(dashboards, page):
    """Every diagnosis of the page, which the table in Rust writes, has its title and a color; no other is named."""
    titles = {label: title for title, label in re.findall(r"^## (.+)\n\n`(\w+)`", page, re.MULTILINE)}
    shown = {}
    for override in panel_of(dashboards["stepmem-fleet"], "Diagnoses")["fieldConfig"]["overrides"]:
        properties = {each["id"]: each["value"] for each in override["properties"]}
        shown[override["matcher"]["options"]] = properties["color"]["fixedColor"]
    if sorted(shown) != sorted(titles.values()):
        yield f"stepmem-fleet, Diagnoses: {shown} are not the diagnoses {titles}"
    if len(set(shown.values())) != len(shown):
        yield f"stepmem-fleet, Diagnoses: two have the same color: {shown}"
    table = panel_of(dashboards["stepmem-exporter"], "Unmanaged processes")
    ranks = dict(re.findall(r'(\d+) \* \(stepmem_diagnosis_severity\{[^}]*kind=\\"(\w+)\\"', json.dumps(table["targets"])))
    [words] = [each["value"] for override in table["fieldConfig"]["overrides"] if override["matcher"]["options"] == "Diagnosis" for each in override["properties"] if each["id"] == "mappings"]
    words = {rank: word["text"] for rank, word in words[0]["options"].items()}
    if {label: words.get(rank) for rank, label in ranks.items()} != titles or len(words) != len(titles):
        yield f"stepmem-exporter, Diagnosis: {ranks} and {words} are not the diagnoses {titles}"
    for stem, dashboard in dashboards.items():
        for legend, query in legends(dashboard):
            renamed = {label: title for title, label in re.findall(r'"kind", "([A-Z ()a-z]+)", "kind", "(\w+)"\)', query)}
            if "{{kind}}" in legend and "stepmem_diagnosis" in query and renamed != titles:
                yield f"{stem}: {legend} is not the title of a diagnosis"
        for named in re.findall(r'kind=~?\\"([\w|]+)\\"', json.dumps(dashboard)):
            yield from (f"{stem} names {label}, which is not a diagnosis" for label in named.split("|") if label not in titles)


def planted_diagnosis(dashboards):
    """A diagnosis that no dashboard has, and one that is gone, must be noticed."""
    page = DIAGNOSES.read_text()
    more = page + "\n## NEW ONE\n\n`NEW_ONE`. Holds.\n"
    less = page.replace("`CREEP_CONFIRMED`", "`CREEP`")
    found = [list(diagnoses(dashboards, changed)) for changed in (more, less)]
    return [] if all(found) else [f"a changed page of diagnoses is not noticed: {found}"]


def panel_of(dashboard, title):
    return next(panel for panel in dashboard["panels"] if panel["title"] == title)


def conventions(dashboard, stem):
    """Conventions that every dashboard follows."""
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    if dashboard["uid"] != stem:
        yield f"uid {dashboard['uid']}"
    if dashboard["schemaVersion"] != 42:
        yield f"schemaVersion {dashboard['schemaVersion']} is not the SDK's, 42"
    if names[0] != "datasource":
        yield f"the first variable is {names[0]}, not datasource"
    targets = " ".join(link["url"] for link in dashboard["links"])
    for other in UIDS - {stem}:
        if f"/d/{other}?" not in targets:
            yield f"no link to {other}"
    if "http" in targets:
        yield "a link to an address that nobody may have"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    for name in names:
        if name not in used:
            yield f"variable {name} is not used"
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        yield "two panels have the same id"
    for panel in dashboard["panels"]:
        yield from (f"{panel['title']}: {problem}" for problem in conventions_of_a_panel(panel))
    yield from overlaps(dashboard["panels"])
    yield from half_empty(dashboard["panels"])


def conventions_of_a_panel(panel):
    if panel["type"] == "row":
        return
    if len(panel["description"]) < 20:
        yield "no description"
    if not panel["fieldConfig"]["defaults"]["unit"]:
        yield "no unit"
    if panel["datasource"]["uid"] != "${datasource}":
        yield "its data source is not the variable"
    if not panel["targets"]:
        yield "no query"
    if panel["type"] == "table" and len(panel["targets"]) > 1:
        yield from (f"{target['legendFormat']} keeps the name of its series, by which rows part" for target in panel["targets"] if re.match(r"(\w+:)?stepmem_", target["expr"]))
    for target in panel["targets"]:
        if "stepmem_creep_holder_info" in target["expr"] and '"holder", "$1$2$3", "holder"' not in target["expr"]:
            yield "names of holders have backticks"
    if panel["title"] == "Verdict" and (panel["options"]["textMode"], panel["targets"][0]["legendFormat"]) != ("value_and_name", "{{kind}}"):
        yield "the severity stands without its diagnosis"
    for transformation in panel.get("transformations", []):
        if transformation["id"] in JOINS:
            yield f"{transformation['id']} breaks on a series that is missing"


def overlaps(panels):
    taken = {}
    for panel in panels:
        at = panel["gridPos"]
        if at["x"] + at["w"] > 24:
            yield f"{panel['title']} is wider than the grid"
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                if (x, y) in taken:
                    yield f"{panel['title']} lies on {taken[x, y]}"
                    return
                taken[x, y] = panel["title"]


TABLE_ROWS_MAX = 7
"""Greatest height of a table, in rows of the grid: a screen has some 24. It scrolls."""


def half_empty(panels):
    """A line of panels that leaves space at its right end; a table whose few rows would leave a screen empty, unless it is the last."""
    lines = {}
    for panel in panels:
        lines.setdefault(panel["gridPos"]["y"], []).append(panel)
    for line in lines.values():
        if sum(panel["gridPos"]["w"] for panel in line) != 24:
            yield f"{line[-1]['title']}: the line ends at column {sum(panel['gridPos']['w'] for panel in line)} of 24"
    for line in list(lines.values())[:-1]:
        for panel in line:
            if panel["type"] == "table" and panel["gridPos"]["h"] > TABLE_ROWS_MAX:
                yield f"{panel['title']}: {panel['gridPos']['h']} rows high, more than {TABLE_ROWS_MAX}"


if __name__ == "__main__":
    main()
