"""Simulated training jobs with known leaks: a model of PyTorch's caching allocator, and families of jobs that run on it."""
