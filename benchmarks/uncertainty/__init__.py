"""Whether stated uncertainties hold, on problems with known solutions: `python -m benchmarks.uncertainty`."""
