r"""Graphs and products with their operator. Knows no model."""
