r"""What explainers return."""
