"""Tools for those who add an operator: OpTester for its values, GradientChecker for its gradients."""

from .gradient_checker import GradientChecker
from .node_model import NodeModel, node_model
from .op_tester import OpTester

__all__ = ["GradientChecker", "NodeModel", "OpTester", "node_model"]
