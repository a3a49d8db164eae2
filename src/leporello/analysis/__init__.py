"""Analyses of a network along a sequence: where its gradients go, how its states behave, what gradient methods cost.

Each returns a result that can be printed, plotted, and shown in a notebook.
"""

from leporello.analysis.bias_and_variance import BiasAndVariance, Measured, bias_and_variance
from leporello.analysis.fixed_points import FixedPoints, fixed_points
from leporello.analysis.gradient_flow import GradientFlow, gradient_flow
from leporello.analysis.jacobians import Jacobians, jacobians
from leporello.analysis.lyapunov import Lyapunov, lyapunov
from leporello.analysis.reach import Reach, reach
from leporello.analysis.terms import Terms, terms

__all__ = [
    "BiasAndVariance",
    "FixedPoints",
    "GradientFlow",
    "Jacobians",
    "Lyapunov",
    "Measured",
    "Reach",
    "Terms",
    "bias_and_variance",
    "fixed_points",
    "gradient_flow",
    "jacobians",
    "lyapunov",
    "reach",
    "terms",
]
