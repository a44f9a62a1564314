"""IOBinding: memory that is bound once is read and written at each run, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ortmodule
from ortmodule import InferenceSession, OrtValue, RunOptions

from .models import add_one, two_results

X = np.array([1, 2, 3], np.float32)


def test_bound_arrays_are_read_at_each_run() -> None:
    session = InferenceSession(add_one())
    binding, x = session.io_binding(), X.copy()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    for start in range(3):
        x[:] = start
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == [start + 1] * 3


def test_a_bound_buffer_is_written_and_is_the_result() -> None:
    session = InferenceSession(add_one())
    binding, y = session.io_binding(), np.full(3, 7, np.float32)
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu", 0, np.float32, [3], y.ctypes.data)
    session.run_with_iobinding(binding)
    assert y.tolist() == [2, 3, 4]
    (value,) = binding.get_outputs()
    assert value.data_ptr() == y.ctypes.data
    copied = binding.copy_outputs_to_cpu()[0]
    y[0] = 0
    assert copied.tolist() == [2, 3, 4]


def test_values_on_both_sides() -> None:
    session = InferenceSession(add_one())
    binding, y = session.io_binding(), OrtValue.ortvalue_from_shape_and_type([3], np.float32)
    binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(X))
    binding.bind_ortvalue_output("y", y)
    session.run_with_iobinding(binding)
    assert y.numpy().tolist() == [2, 3, 4]


def test_a_tensor_bound_by_its_address() -> None:
    session = InferenceSession(add_one())
    binding, x = session.io_binding(), torch.tensor([1.0, 2.0])
    binding.bind_input("x", "cpu", 0, np.float32, list(x.shape), x.data_ptr())
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    x += 1
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].numpy().tolist() == [3, 4]


def test_one_runs_result_is_the_next_ones_input() -> None:
    session = InferenceSession(add_one())
    buffers = [OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32)) for _ in range(2)]
    bindings = []
    for i in range(2):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", buffers[i])
        binding.bind_ortvalue_output("y", buffers[1 - i])
        bindings.append(binding)
    for step in range(10):
        session.run_with_iobinding(bindings[step % 2])
    assert buffers[0].numpy().tolist() == [10, 10]


def test_the_same_memory_as_input_and_output() -> None:
    session = InferenceSession(add_one())
    binding, x = session.io_binding(), OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", x)
    for _ in range(5):
        session.run_with_iobinding(binding)
    assert x.numpy().tolist() == [5, 5]


def test_results_without_a_buffer_are_new_at_each_run() -> None:
    session = InferenceSession(add_one())
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    first = binding.get_outputs()[0]
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].data_ptr() != first.data_ptr()
    assert first.numpy().tolist() == [2, 3, 4]


def test_only_what_is_bound_is_computed() -> None:
    session = InferenceSession(two_results())
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones((2, 3), np.float32))
    binding.bind_cpu_input("at", np.array(5))  # no row; its kernel would fail
    binding.bind_output("total")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].shape() == [2, 2]
    options = RunOptions()
    options.only_execute_path_to_fetches = False
    with pytest.raises(ortmodule.ORTModuleError, match="position 5"):
        session.run_with_iobinding(binding, options)


def test_what_is_not_bound_is_an_error() -> None:
    session = InferenceSession(two_results())
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones((2, 3), np.float32))
    binding.bind_output("total")
    with pytest.raises(ortmodule.InvalidArgumentError, match=r"not bound: inputs \['at'\]"):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("at", np.array(0))
    binding.clear_binding_outputs()
    with pytest.raises(ortmodule.InvalidArgumentError, match="no output is bound"):
        session.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    for bind in (binding.bind_cpu_input, binding.bind_ortvalue_input):
        with pytest.raises(ortmodule.InvalidArgumentError, match="no input 'xx'"):
            bind("xx", OrtValue.ortvalue_from_numpy(X) if bind == binding.bind_ortvalue_input else X)
    with pytest.raises(ortmodule.InvalidArgumentError, match="no output 'totals'; it has .*did you mean 'total'"):
        binding.bind_output("totals")
    with pytest.raises(ortmodule.InvalidArgumentError, match="element_type and a shape"):
        binding.bind_output("total", buffer_ptr=16)


@pytest.mark.parametrize(("shape", "dtype"), [([4], np.float32), ([3], np.float64)], ids=["shape", "type"])
def test_a_buffer_that_does_not_fit_is_an_error_and_stays(shape: list[int], dtype) -> None:
    session = InferenceSession(add_one())
    binding, y = session.io_binding(), np.full(shape, 7, dtype)
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(y))
    with pytest.raises(ortmodule.InvalidArgumentError, match="the buffer of the output 'y'"):
        session.run_with_iobinding(binding)
    assert (y == 7).all()


def test_two_bindings_of_a_session_do_not_meet() -> None:
    session = InferenceSession(add_one())
    made = []
    for i in range(3):
        binding = session.io_binding()
        binding.bind_cpu_input("x", X + i)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        made.append(binding)
    assert [binding.copy_outputs_to_cpu()[0].tolist() for binding in made] == [[2 + i, 3 + i, 4 + i] for i in range(3)]
