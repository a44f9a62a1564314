"""External data: no model reads a file outside of its folder, and ranges must lie in the file.

Eight ways out of the folder, each carried by four kinds of tensors: 32 of 32 are refused, and the secret is in no
error's text. Writing: tests/cpp/onnx/external_file_test.cpp.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortmodule import InferenceSession, ORTModuleError, SessionOptions

SECRET = np.full(4, 7.0, np.float32)
CARRIERS = ("initializer", "Constant", "sparse Constant", "sparse initializer")


def external(location: str, **more: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "16", **more}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_with(carrier: str, tensor: TensorProto) -> onnx.ModelProto:
    """y = x + w."""
    sparse = onnx.SparseTensorProto(dims=[4])
    sparse.values.CopyFrom(tensor)
    sparse.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, [4], [0, 1, 2, 3]))
    nodes, graph_parts = [helper.make_node("Add", ["x", "w"], ["y"])], {}
    if carrier == "initializer":
        graph_parts["initializer"] = [tensor]
    elif carrier == "sparse initializer":
        graph_parts["sparse_initializer"] = [sparse]
    else:
        attribute = onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=tensor)
        if carrier == "sparse Constant":
            kind = onnx.AttributeProto.SPARSE_TENSOR
            attribute = onnx.AttributeProto(name="sparse_value", type=kind, sparse_tensor=sparse)
        constant = helper.make_node("Constant", [], ["w"])
        constant.attribute.append(attribute)
        nodes.insert(0, constant)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], **graph_parts)
    return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 23)])


def save(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())  # onnx.save would look at the external data
    return path


class Escape:
    """A way to the secret, which lies beside the model's folder, and the location that a model names."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "model"
        self.folder.mkdir(parents=True)
        (self.folder / "inner").mkdir()
        self.secret = root / "secret.bin"
        self.secret.write_bytes(SECRET.tobytes())

    def parent(self) -> str:
        return "../secret.bin"

    def nested_parent(self) -> str:
        return "inner/../../secret.bin"

    def absolute(self) -> str:
        return str(self.secret)

    def symbolic_link(self) -> str:
        (self.folder / "link.bin").symlink_to(self.secret)
        return "link.bin"

    def linked_folder(self) -> str:
        (self.folder / "linked").symlink_to(self.root, target_is_directory=True)
        return "linked/secret.bin"

    def hard_link(self) -> str:
        os.link(self.secret, self.folder / "hard.bin")
        return "hard.bin"


WAYS: dict[str, Callable[[Escape], str]] = {
    "..": Escape.parent,
    "nested ..": Escape.nested_parent,
    "absolute": Escape.absolute,
    "symbolic link": Escape.symbolic_link,
    "linked folder": Escape.linked_folder,
    "hard link": Escape.hard_link,
}


def refused(path: str | Path) -> bool:
    """Whether a session is refused; it never shows the secret."""
    try:
        session = InferenceSession(path)
    except ORTModuleError as error:
        assert "7.0" not in str(error)
        return True
    (y,) = session.run(None, {"x": np.zeros(4, np.float32)})
    assert not np.array_equal(y, SECRET), "the secret was read"
    return False


def ways(root: Path, monkeypatch: pytest.MonkeyPatch, carrier: str) -> Iterator[tuple[str, bool]]:
    """Each way with whether it was refused."""
    for i, (name, way) in enumerate(WAYS.items()):
        escape = Escape(Path(root / str(i)).absolute())
        yield name, refused(save(escape.folder, model_with(carrier, external(way(escape)))))
    # The folder of a bare file name is the current one, and no less looked at than any other.
    escape = Escape(root / "bare")
    save(escape.folder, model_with(carrier, external(escape.parent())))
    monkeypatch.chdir(escape.folder)
    yield "bare file name", refused("model.onnx")
    yield "exchanged while it is read", exchanged(Escape(root / "exchanged"), carrier)


def exchanged(escape: Escape, carrier: str) -> bool:
    """A file that is sound at one moment and a link to the secret at the next: only the sound one is ever read."""
    own, there = np.arange(4, dtype=np.float32), escape.folder / "w.bin"
    path = save(escape.folder, model_with(carrier, external("w.bin")))
    there.write_bytes(own.tobytes())
    stop = threading.Event()

    def exchange() -> None:
        beside, k = escape.folder / "beside", 0
        while not stop.is_set():
            k += 1
            if k % 2:
                beside.symlink_to(escape.secret)
            else:
                beside.write_bytes(own.tobytes())
            os.replace(beside, there)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(200):
            refused(path)  # sound files are read, links are refused; the secret would fail here
    finally:
        stop.set()
        thread.join()
    there.unlink()
    there.symlink_to(escape.secret)
    return refused(path)


def test_no_location_leaves_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {}
    for carrier in CARRIERS:
        root = tmp_path / carrier.replace(" ", "_")
        root.mkdir()
        results.update({(carrier, way): was for way, was in ways(root, monkeypatch, carrier)})
    print(f"external data: {sum(results.values())} of {len(results)} ways out of the folder refused")
    assert len(results) == 32 and all(results.values()), [key for key, was in results.items() if not was]


def test_what_lies_in_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "w.bin").write_bytes(SECRET.tobytes())
    for carrier in ("initializer", "Constant"):
        session = InferenceSession(save(tmp_path, model_with(carrier, external("inner/w.bin"))))
        (y,) = session.run(None, {"x": np.zeros(4, np.float32)})
        assert y.tolist() == [7, 7, 7, 7]


def test_a_cache_of_links_is_read_where_its_root_is_named(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "abc").write_bytes(SECRET.tobytes())
    (blobs / "def").write_bytes(model_with("initializer", external("model.onnx_data")).SerializeToString())
    (snapshot / "model.onnx").symlink_to("../../blobs/def")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/abc")
    path, options = snapshot / "model.onnx", SessionOptions()
    with pytest.raises(ORTModuleError, match="external_data_root"):
        InferenceSession(path)
    options.external_data_root = tmp_path / "hub"
    (y,) = InferenceSession(path, options).run(None, {"x": np.zeros(4, np.float32)})
    assert y.tolist() == [7, 7, 7, 7]
    (tmp_path / "secret").write_bytes(SECRET.tobytes())
    for way in ("../../../secret", str(tmp_path / "secret"), "/proc/self/environ"):
        (snapshot / "model.onnx_data").unlink()
        (snapshot / "model.onnx_data").symlink_to(way)
        with pytest.raises(ORTModuleError, match="lies outside of"):
            InferenceSession(path, options)


def test_bytes_read_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.bin").write_bytes(SECRET.tobytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ORTModuleError, match="external file"):
        InferenceSession(model_with("initializer", external("w.bin")))


# -- offsets and lengths -----------------------------------------------------------------------------------------------

_RANGES: dict[str, dict[str, str]] = {
    "negative offset": {"offset": "-1"},
    "negative length": {"length": "-16"},
    "offset behind the end": {"offset": "1000000"},
    "offset at the end": {"offset": "64"},
    "a range over the end": {"offset": "56"},
    "length over the end": {"length": "65"},
    "length too short": {"length": "12"},
    "length too long": {"length": "20"},
    "length zero": {"length": "0"},
    "largest offset": {"offset": str(2**64 - 1)},
    "offset and length overflow": {"offset": str(2**64 - 16)},
    "offset overflows": {"offset": str(2**64)},
    "length overflows": {"length": str(2**64 + 16)},
    "signed overflow": {"offset": str(2**63 - 8)},
    "offset is a word": {"offset": "start"},
    "offset is a fraction": {"offset": "0.0"},
    "offset with a space": {"offset": " 0"},
    "offset is hexadecimal": {"offset": "0x0"},
    "length is empty": {"length": ""},
    "an unknown key": {"base_dir": "/"},
    "no location": {"location": ""},
}


def test_ranges_must_lie_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    accepted = []
    for name, change in _RANGES.items():
        model = model_with("initializer", external(**{"location": "w.bin", **change}))
        accepted += [] if refused(save(tmp_path, model)) else [name]
    doubled = external("w.bin")
    doubled.external_data.add(key="location", value="../w.bin")
    accepted += [] if refused(save(tmp_path, model_with("initializer", doubled))) else ["a key twice"]
    count = len(_RANGES) + 1
    print(f"external data: {count - len(accepted)} of {count} broken offsets, lengths and keys refused")
    assert count >= 20 and accepted == []
