"""What stepmem said of a job: the documents of its surfaces, unread."""

from typing import Any, Dict, NamedTuple, Optional, Tuple


class Moment(NamedTuple):
    """The surfaces of a job, taken together after a step (the newest that the exporter has)."""

    step: int
    status: Dict[str, Any]
    """/api/v1/status, its ranks and findings of this job only."""
    metrics: str
    """/metrics, the samples of this job only."""
    has_ended: bool = False


class Observed(NamedTuple):
    """All that was said of a job."""

    moments: Tuple[Moment, ...]
    summary: Dict[str, Any]
    """The summary as JSON, after the end."""
    card: str
    """The summary as text, after the end."""
    exit_code: Optional[int] = None
    """Of `stepmem run`; None for recordings."""
