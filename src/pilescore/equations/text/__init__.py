"""Equations as text, read by a small safe grammar into operators and known functions."""

from .language import IntegralEquation, KnownFunction, Language, ParameterFunction, ParsedEquation
from .parser import ExpressionError, NonlinearError

__all__ = [
    "ExpressionError",
    "IntegralEquation",
    "KnownFunction",
    "Language",
    "NonlinearError",
    "ParameterFunction",
    "ParsedEquation",
]
