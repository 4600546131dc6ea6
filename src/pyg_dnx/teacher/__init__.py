r"""What is asked of the user's model. Knows no surrogate."""
