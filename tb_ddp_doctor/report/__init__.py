"""A diagnosis to hand on: an HTML file, Markdown."""
