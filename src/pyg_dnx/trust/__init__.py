r"""How far to trust explanations: measured on the model, and by theory."""
