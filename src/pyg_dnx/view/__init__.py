r"""Pages of explanations."""
