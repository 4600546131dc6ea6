r"""A model on a graph, distilled into a linear surrogate. Knows no scores."""
