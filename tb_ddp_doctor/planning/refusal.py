"""The error of a prediction that a run's traces do not allow."""

from __future__ import annotations


class CannotPlanError(Exception):
    """A question that this run's traces cannot answer. Its text says why, and what to record, for users."""
