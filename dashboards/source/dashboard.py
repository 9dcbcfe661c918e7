"""A dashboard: its variables, its links to the others, and where its panels lie."""

from dataclasses import dataclass, field
from typing import List

from .kinds import titled
from .panels import DATASOURCE, WIDTH
from .promql import promql

SCHEMA_VERSION = 42


def variable(name, label, query, many=False):
    """A variable that asks Prometheus; one of many values also matches series without the label."""
    query = promql(query)
    made = {
        "type": "query",
        "name": name,
        "label": label,
        "description": "",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 7,
        "hide": 0,
        "includeAll": many,
        "multi": many,
        "current": {},
    }
    if many:
        made |= {
            "allValue": ".*",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }
    return made


def hidden(name, query, regex):
    """A variable that nobody sees: every value that the regex finds in the query's result."""
    made = variable(name, name, query, many=True)
    del made["allValue"]
    return made | {"hide": 2, "sort": 0, "regex": regex}


DATASOURCE_VARIABLE = {
    "type": "datasource",
    "name": "datasource",
    "label": "Data source",
    "query": "prometheus",
    "hide": 0,
    "refresh": 1,
    "current": {},
}
CLUSTER = variable("cluster", "Cluster", "label_values(stepmem_up, cluster)", many=True)
NAMESPACE = variable(
    "namespace",
    "Namespace",
    'label_values(stepmem_up{cluster=~"$cluster"}, namespace)',
    many=True,
)
RECORDED_CLUSTER = variable(
    "cluster", "Cluster", "label_values(run:stepmem_ranks:count, cluster)", many=True
)
RECORDED_NAMESPACE = variable(
    "namespace",
    "Namespace",
    'label_values(run:stepmem_ranks:count{cluster=~"$cluster"}, namespace)',
    many=True,
)
ONE_RUN = variable("run", "Run", "label_values(stepmem_run_ranks{<PLACE>}, run)")
RANKS_OF_RUN = "label_values(stepmem_rank_step{<RUN>}, rank)"
MANY_RANKS = variable("rank", "Rank", RANKS_OF_RUN, many=True)
ONE_RANK = variable("rank", "Rank", RANKS_OF_RUN)
WORST_RANKS = hidden("worst", "query_result(topk(16, <BY_SEVERITY>))", '/rank="([^"]+)"/')
WORST_DEVICES = hidden(
    "device", "query_result(max by (uuid) (stepmem_rank_info{<WORST>}))", '/uuid="([^"]+)"/'
)
PODS = variable("pod", "Pod", "label_values(stepmem_up{<PLACE>}, pod)", many=True)


def diagnoses_since(selector, subject="rank {{rank}}"):
    """An annotation where each diagnosis began."""
    return {
        "name": "Diagnoses",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": promql(titled(f"stepmem_diagnosis_since_timestamp_seconds{{{selector}}} * 1000")),
        "useValueForTime": "on",
        "titleFormat": "{{kind}}",
        "tagKeys": "kind",
        "textFormat": subject,
        "step": "60s",
    }


def link(title, url, tooltip):
    return {
        "type": "link",
        "title": title,
        "url": url,
        "icon": "dashboard",
        "tooltip": tooltip,
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": False,
        "targetBlank": False,
    }


def placed(panels):
    """The panels' JSON from left to right, on a new line where one does not fit any more."""
    x = y = line_height = 0
    made = []
    for number, panel in enumerate(panels, 1):
        width, height = panel.size
        if x + width > WIDTH:
            x, y, line_height = 0, y + line_height, 0
        made.append(panel.json(number, {"x": x, "y": y, "w": width, "h": height}))
        x, line_height = x + width, max(line_height, height)
    return made


@dataclass
class Dashboard:
    uid: str
    title: str
    description: str
    variables: list
    panels: list
    annotations: List[dict] = field(default_factory=list)

    def as_link(self):
        """A link to this dashboard that keeps the time and the place."""
        place = "${datasource:queryparam}&${cluster:queryparam}&${namespace:queryparam}"
        url = f"/d/{self.uid}?{place}&${{__url_time_range}}"
        return link(self.title, url, self.description)

    def json(self, dashboards):
        others = [other.as_link() for other in dashboards if other.uid != self.uid]
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["stepmem", "gpu"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "browser",
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "fiscalYearStartMonth": 0,
            "templating": {"list": [DATASOURCE_VARIABLE, *self.variables]},
            "annotations": {"list": self.annotations},
            "links": others,
            "panels": placed(self.panels),
        }
