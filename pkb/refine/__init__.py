"""Refinement: an attempt as a conversation, with feedback on every answer and an end that has a reason."""
