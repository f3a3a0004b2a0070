"""Jobs: submit a call now, fetch its result later, from any process."""

from operations.calls.job_records import JobProgress, JobState
from operations.jobs.operations import job_operations
from operations.jobs.service import ADMIN_SCOPE, Jobs
from operations.jobs.status import JOB_NOT_ENDED, JOB_NOT_FOUND, JobStatus
from operations.jobs.store import JobLimits

__all__ = [
    "ADMIN_SCOPE",
    "JOB_NOT_ENDED",
    "JOB_NOT_FOUND",
    "JobLimits",
    "JobProgress",
    "JobState",
    "JobStatus",
    "Jobs",
    "job_operations",
]
