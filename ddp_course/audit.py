"""The old name of `ddp_course.tools.audit`, for loops that import it so."""

from ddp_course.tools.audit import Report, Verdict, watch  # noqa: F401
