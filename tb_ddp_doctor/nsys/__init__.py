"""Nsight Systems' SQLite exports: which processes a file holds, and what may be read of it."""
