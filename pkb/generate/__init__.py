"""From a prompt to a model's answer, paid once."""
