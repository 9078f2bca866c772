"""Benchmarks: experiments, plans, sweeps and executors for many runs, and claims to reproduce."""
