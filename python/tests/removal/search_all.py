"""Imports programs one after another, searches each for its holder, and prints what its code does to it, as the exporter gets it.

    python search_all.py FOLDER NAME…
"""

import importlib
import json
import sys

from stepmem import _wire
from stepmem._holders import allowance
from stepmem._holders.candidates import Whole
from stepmem._holders.search import Search

STEPS = 120


def searched(name):
    module = importlib.import_module(name)
    search = Search(20, Whole(None, True), 1.0)
    search.next_seconds = 1.0

    def step_end(n):
        if n >= 20:
            search.next_seconds = 1.0
            search.at_step_end(n)

    module.run(step_end, STEPS)
    fields = [_wire._holder_fields(holder.located(True)) for holder in search.holders]
    return {"name": name, "holders": fields, "error": search.error}


def main():
    folder, names = sys.argv[1], sys.argv[2:]
    sys.path.insert(0, folder)
    allowance.SLICE_SECONDS = 1.0
    for name in names:
        print(json.dumps(searched(name)), flush=True)
        for each in [each for each in sys.modules if each.startswith("program")]:
            del sys.modules[each]


main()
