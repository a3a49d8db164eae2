"""Gradient methods as objects: what is done to the backward Loop before it runs."""

from leporello.gradient.full import Full

__all__ = ["Full"]
