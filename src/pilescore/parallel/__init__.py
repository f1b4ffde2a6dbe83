"""Parallel work: cores, memory and BLAS threads of this machine, Dask workers, progress bars."""

from .cluster import (
    LocalWorkers,
    TaskGraph,
    TaskRunner,
    WorkerState,
    as_bytes,
    checked_client,
    free_disk,
    import_distributed,
    worker_states,
)
from .evaluation_pool import (
    EvaluationPool,
    WorkersLostError,
    batched,
    cluster_errors,
    connect,
    evaluations_per_task,
    refuse_nested_clusters,
)
from .progress import progress_bar
from .resources import ALWAYS_FITS_BYTES, ONE_BLAS_THREAD, cores, require_memory, threads

__all__ = [
    "ALWAYS_FITS_BYTES",
    "ONE_BLAS_THREAD",
    "EvaluationPool",
    "LocalWorkers",
    "TaskGraph",
    "TaskRunner",
    "WorkerState",
    "WorkersLostError",
    "as_bytes",
    "batched",
    "checked_client",
    "cluster_errors",
    "connect",
    "cores",
    "evaluations_per_task",
    "free_disk",
    "import_distributed",
    "progress_bar",
    "refuse_nested_clusters",
    "require_memory",
    "threads",
    "worker_states",
]
