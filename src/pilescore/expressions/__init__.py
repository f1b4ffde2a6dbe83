"""Equations as text, read by a small safe grammar into operators and known functions."""

from .language import Equation, ExpressionError, Function, IntegralEquation, Language, NonlinearError

__all__ = ["Equation", "ExpressionError", "Function", "IntegralEquation", "Language", "NonlinearError"]
