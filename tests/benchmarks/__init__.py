"""Measures of the engine, one file each: real work through the public API, beside a reference and a peer.

`python -m tests.benchmarks` runs them all, writes BENCHMARKS.md and fails where a limit is missed.
"""
