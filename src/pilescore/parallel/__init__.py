"""Parallel work: cores, memory and BLAS threads of this machine, Dask workers, progress bars.

Nothing here is public; names imported `as` themselves are for the other packages.
"""

from .cluster import LocalWorkers as LocalWorkers
from .cluster import TaskGraph as TaskGraph
from .cluster import TaskRunner as TaskRunner
from .cluster import WorkerState as WorkerState
from .cluster import as_bytes as as_bytes
from .cluster import checked_client as checked_client
from .cluster import free_disk as free_disk
from .cluster import import_distributed as import_distributed
from .cluster import worker_states as worker_states
from .evaluation_pool import EvaluationPool as EvaluationPool
from .evaluation_pool import WorkersLostError as WorkersLostError
from .evaluation_pool import batched as batched
from .evaluation_pool import cluster_errors as cluster_errors
from .evaluation_pool import connect as connect
from .evaluation_pool import evaluations_per_task as evaluations_per_task
from .evaluation_pool import refuse_nested_clusters as refuse_nested_clusters
from .resources import ALWAYS_FITS_BYTES as ALWAYS_FITS_BYTES
from .resources import ONE_BLAS_THREAD as ONE_BLAS_THREAD
from .resources import cores as cores
from .resources import progress_bar as progress_bar
from .resources import require_memory as require_memory
from .resources import threads as threads
