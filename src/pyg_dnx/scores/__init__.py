r"""Scores of nodes, features and edges. Knows no PyG `Explanation`."""
