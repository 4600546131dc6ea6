r"""The explainers, for PyG's explain API."""
