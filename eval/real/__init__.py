"""Series of memory over time of real jobs, and the same with a leak added."""
