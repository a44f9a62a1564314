"""What a step computes, looked at: `compare` with PyTorch, `record` and `diff` of runs, `dump` of nodes, `plan`.

Not here: time (profiler.py), memory (memory_report.py), and how the core shows values (csrc/runtime/run_observer.h).
"""

from .comparison import Comparison, Difference, compare
from .divergence import Divergence, RecordingDiff, diff
from .dumping import Dump, dump
from .recorder import Recorder, record
from .recording import RecordedHalf, RecordedStep, RecordedValue, Recording
from .step_plan import StepPlan, plan

__all__ = [
    "Comparison",
    "Difference",
    "Divergence",
    "Dump",
    "RecordedHalf",
    "RecordedStep",
    "RecordedValue",
    "Recorder",
    "Recording",
    "RecordingDiff",
    "StepPlan",
    "compare",
    "diff",
    "dump",
    "plan",
    "record",
]
