"""Scores a detector on jobs of known truth, and keeps the figures in results.json."""
