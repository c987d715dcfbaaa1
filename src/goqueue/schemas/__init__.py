"""Schemas: the registry and its rules, and whether messages keep to them. Pure: facts go in, facts come out."""
