"""Where gradients go: instruments that look into a network along a sequence. Each gives a result that shows itself."""

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
