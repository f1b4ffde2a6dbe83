"""Published problems with published numbers, posed with the defaults: `python -m benchmarks.published`."""
