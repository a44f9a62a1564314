"""What a run of a session costs beside its kernels: a model of one node, from Python, by IOBinding, and from C++.

    python benchmarks/one_node.py --json out.json

`run` gives and takes NumPy's arrays, beside the stock onnxruntime package's in turns; `iobinding` runs with bound
tensors; `C++` is `examples/cpp_training/infer.cpp` with bound tensors, built against the installed headers (it needs
CMake and a compiler). Microseconds of one run: the median of the rounds' means, and the fastest round; of C++ the
median of three programs' medians, and the least.
Not here: models whose kernels take the time (inference.py).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import onnx
import torch
from onnx import TensorProto, helper

from common import ROOT, facts, table, write_json

RUNS = 2000  # of a round


def one_node(path: Path) -> None:
    """y = Relu(x), x: float[1, 4]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def in_cpp(path: Path, folder: Path) -> float:
    """Microseconds of a run of the C++ example."""
    import ortmodule

    build = folder / "build"
    places = [f"-Dortmodule_DIR={ortmodule.cmake_dir()}", f"-DTORCH_ROOT={Path(torch.__file__).parent}"]
    source = ROOT / "examples" / "cpp_training"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in (
        ["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *places],
        ["cmake", "--build", build, "--target", "infer"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    said = subprocess.check_output([build / "infer", path, str(10 * RUNS)], text=True, env=environment)
    found = re.search(r"a run takes ([0-9.]+) us", said)
    assert found, said
    return float(found[1])


def runs_of(path: Path) -> dict[str, Callable[[], Any]]:
    """What is timed in Python, by name."""
    import onnxruntime

    import ortmodule

    x = numpy.array([[-1, 2, -3, 4]], numpy.float32)
    feeds = {"x": x}
    own = ortmodule.InferenceSession(str(path))
    stock = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    binding = own.io_binding()
    binding.bind_ortvalue_input("x", ortmodule.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", ortmodule.OrtValue.ortvalue_from_shape_and_type([1, 4], numpy.float32))
    assert (own.run(None, feeds)[0] == stock.run(None, feeds)[0]).all()
    return {
        "run": lambda: own.run(None, feeds),
        "onnxruntime run": lambda: stock.run(None, feeds),
        "iobinding": lambda: own.run_with_iobinding(binding),
    }


def main() -> None:
    """Prints a table; writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-cpp", action="store_true", help="Python alone")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.onnx"
        one_node(path)
        runs = runs_of(path)
        samples: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(args.rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                for _ in range(RUNS):
                    run()
                samples[name].append((time.perf_counter() - start) / RUNS * 1e6)
        rows = [
            {"what": name, "median": statistics.median(some), "fastest": min(some)} for name, some in samples.items()
        ]
        if not args.no_cpp:
            taken = [in_cpp(path, Path(folder)) for _ in range(3)]
            rows.append({"what": "C++", "median": statistics.median(taken), "fastest": min(taken)})
    cells = [[row["what"], f"{row['median']:.2f}", f"{row['fastest']:.2f}"] for row in rows]
    print(table(["", "median us", "fastest us"], cells))
    if args.json:
        write_json(args.json, {"facts": facts(threads=1), "rows": rows})


if __name__ == "__main__":
    main()
