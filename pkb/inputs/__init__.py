"""Recipes for inputs that several problems share; a problem's own spec.py says which it uses."""
