"""A diagnosis to read and to hand on: in the terminal, as an HTML file, as Markdown."""
