"""Draws jobs whose truth is known by construction, and judges every typed statement that stepmem makes of them."""
