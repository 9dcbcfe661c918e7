"""The numbers by which an object, a line or garbage of the program grows, and explains the growth of memory.

They are not the detector's, which judges one sum of memory over thousands of steps and has ruled out chance before a search
begins. A search measures single objects, a few times and some steps apart: it asks which of them has its share of that growth.
"""

SHARE_OF_RATE = 0.4
"""A holder goes on growing at this share of its rate, at least."""

EXPLAINED = 0.1
"""A holder of less than this share of the growth does not explain it."""

NEXT_TO_NOTHING = 0.02
"""A holder of less than this share of the growth of host memory does not hold it, if it keeps nothing but what was measured."""

WHOLE = (0.5, 1.5)
"""A holder whose growth is within these shares of the whole is most of it."""

DATA_BYTES_MIN = 4096.0
"""Bytes a step by which a holder without tensors grows, at least, where the whole growth is unknown: programs log numbers."""

SHARED = 0.5
"""Two holders of which one has this share of the other's tensors and arrays hold the same."""

MORE = 1.25
"""A holder that has so many times as much as one that is nearer to the same memory has more of its own, as optimizers have states."""

ALIKE = 0.5
"""The oldest items are like the new ones if they hold at least this share of what those do."""

HALF_STEPS_MIN = 4
"""Steps in each half of a window, at least."""

TURNOVER = 2.0
"""A line that allocates more than so many times the growth fills a buffer from which as much is freed."""

GROWTH_MIN = 2
"""By so many objects the youngest generation grows between two scans, or it is not listed."""

CYCLES_MIN = 3
"""Fewer tensors in cycles of a graph are not reported: those of the current step may be in use."""
