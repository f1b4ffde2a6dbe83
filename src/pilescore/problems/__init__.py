"""Problem files: scientific problems written in TOML, read into models."""

from .loading import Problem, digest, load_problem, read_points
from .understood import block_text, describe_problem, parameter_text

__all__ = ["Problem", "block_text", "describe_problem", "digest", "load_problem", "parameter_text", "read_points"]
