"""One session that several threads run at once: every result is that of a run alone, with and without limits."""

from __future__ import annotations

import threading

import numpy as np
import onnx.parser
import pytest

from ortmodule import InferenceSession, LimitError, SessionOptions

THREADS, RUNS = 8, 1000
MODEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> g (float[n, 16] x, int64[1] k) => (float[m, 16] y, float[n, 16] z)'
    "{ a = Relu(x)  b = Softmax(a)  z = Add(b, x)  one = Constant<value_ints = [1]>()  r = Concat<axis = 0>(k, one)"
    "  y = Tile(z, r) }"
)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_threads_get_the_results_of_a_run_alone(limit: int) -> None:
    options = SessionOptions()
    options.max_run_bytes = limit
    session = InferenceSession(MODEL, options)
    inputs = [np.random.default_rng(n).random((n + 1, 16), np.float32) for n in range(THREADS)]
    few = np.array([2])
    wanted = [session.run(None, {"x": x, "k": few}) for x in inputs]
    wrong: list[str] = []

    def work(n: int) -> None:
        for i in range(RUNS):
            got = session.run(None, {"x": inputs[n], "k": few})
            if any(not np.array_equal(a, b) for a, b in zip(got, wanted[n], strict=True)):
                wrong.append(f"thread {n}, run {i}")
            if limit and i % 100 == 0:  # a run that is refused is none of the others' business
                with pytest.raises(LimitError):
                    session.run(None, {"x": inputs[n], "k": np.array([1 << 20])})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{THREADS} threads, {RUNS} runs each: {len(wrong)} differ")
    assert wrong == []
