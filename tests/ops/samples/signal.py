"""Rows of signal operators, sequences, conditions, features and what else reads or writes by runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..table import Case, Row, ints, rand, scalar

# -- transforms --------------------------------------------------------------------------------------------------------


def as_complex(x: torch.Tensor) -> torch.Tensor:
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    x = x.to(kind)
    return x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())


def dft(
    x: torch.Tensor,
    length: torch.Tensor | None = None,
    axis: torch.Tensor | None = None,
    inverse: int = 0,
    onesided: int = 0,
) -> torch.Tensor:
    along = -2 if axis is None else int(axis)
    along = along % x.dim()
    n = None if length is None else int(length)
    z = as_complex(x)
    if inverse and onesided:
        return torch.fft.irfft(z, n, along).unsqueeze(-1).to(x.dtype)
    if inverse:
        y = torch.fft.ifft(z, n, along)
    else:
        y = torch.fft.fft(z, n, along)
        if onesided:
            y = y.narrow(along, 0, y.shape[along] // 2 + 1)
    return torch.view_as_real(y).to(x.dtype)


def dft_cases(dtype: torch.dtype) -> Sequence[Case]:
    real, pair = rand(2, 6, 5, 1, dtype=dtype), rand(2, 6, 5, 2, dtype=dtype)
    return [
        Case((real,)),
        Case((pair, None, scalar(1)), constants=(2,)),
        Case((real, None, scalar(1)), {"onesided": 1}, (2,)),
        Case((real, scalar(8), scalar(-3)), {"onesided": 1}, (1, 2)),
        Case((pair, scalar(4), scalar(1)), constants=(1, 2)),
        Case((pair,), {"inverse": 1}),
        Case((pair, scalar(7)), {"inverse": 1}),
        Case((pair, None, scalar(1)), {"inverse": 1, "onesided": 1}, (2,)),
    ]


def dft_of_opset_17(
    x: torch.Tensor, length: torch.Tensor | None = None, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> torch.Tensor:
    return dft(x, length, scalar(axis), inverse, onesided)


def dft_of_opset_17_cases(dtype: torch.dtype) -> Sequence[Case]:
    real, pair = rand(2, 6, 5, 1, dtype=dtype), rand(2, 6, 5, 2, dtype=dtype)
    return [Case((real,), {"onesided": 1}), Case((pair, scalar(4)), {"axis": 2}, (1,)), Case((pair,), {"inverse": 1})]


def stft(
    signal: torch.Tensor,
    step: torch.Tensor,
    window: torch.Tensor | None = None,
    length: torch.Tensor | None = None,
    onesided: int = 1,
) -> torch.Tensor:
    n = int(length) if length is not None else window.shape[0] if window is not None else signal.shape[1]
    frames = as_complex(signal).unfold(1, n, int(step))
    if window is not None:
        frames = frames * window.to(torch.float64 if signal.dtype == torch.float64 else torch.float32)
    y = torch.fft.rfft(frames) if onesided and not frames.is_complex() else torch.fft.fft(frames)
    return torch.view_as_real(y).to(signal.dtype)


def stft_cases(dtype: torch.dtype) -> Sequence[Case]:
    real, pair, window = rand(2, 30, 1, dtype=dtype), rand(2, 30, 2, dtype=dtype), rand(8, dtype=dtype)
    return [
        Case((real, scalar(4), window), constants=(1,)),
        Case((real, scalar(5), window, scalar(8)), {"onesided": 0}, (1, 3)),
        Case((real, scalar(3), None, scalar(9)), constants=(1, 3)),
        Case((pair, scalar(4), window), {"onesided": 0}, (1,)),
    ]


# -- windows -----------------------------------------------------------------------------------------------------------


def hann(size: torch.Tensor, periodic: int = 1, output_datatype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.hann_window(int(size), bool(periodic), dtype=torch.float64).to(output_datatype)


def hamming(size: torch.Tensor, periodic: int = 1, output_datatype: torch.dtype = torch.float32) -> torch.Tensor:
    y = torch.hamming_window(int(size), bool(periodic), 25 / 46, 21 / 46, dtype=torch.float64)
    return y.to(output_datatype)


def blackman(size: torch.Tensor, periodic: int = 1, output_datatype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.blackman_window(int(size), bool(periodic), dtype=torch.float64).to(output_datatype)


def window_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((scalar(8),), {}, (0,)),
        Case((scalar(9),), {"periodic": 0, "output_datatype": dtype}),
        Case((scalar(1),), {"periodic": 0}),
    ]


def mel_weight_matrix(
    bins: torch.Tensor, length: torch.Tensor, rate: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    def mel(hertz: torch.Tensor) -> torch.Tensor:
        return 2595 * torch.log10(1 + hertz / 700)

    count, rows = int(bins), int(length) // 2 + 1
    low, high = mel(low.double()), mel(high.double())
    steps = low + torch.arange(count + 2) * (high - low) / (count + 2)
    edges = ((int(length) + 1) * 700 * (10 ** (steps / 2595) - 1) / int(rate)).floor().long().tolist()
    out = torch.zeros(rows, count)
    for i, (a, b, c) in enumerate(zip(edges, edges[1:], edges[2:])):
        for j in range(rows):
            if a <= j <= b and a < b:
                out[j, i] = (j - a) / (b - a)
            if b <= j < c:
                out[j, i] = (c - j) / (c - b)
        if a == b:
            out[b, i] = 1.0
    return out


def mel_cases(dtype: torch.dtype) -> Sequence[Case]:
    low, high = torch.tensor(0.0), torch.tensor(4000.0)
    return [
        Case((scalar(8), scalar(64), scalar(8192), low, high), constants=(0, 1, 2, 3, 4)),
        Case((scalar(4), scalar(33), scalar(8192), low + 100, high)),
    ]


# -- conditions and runs -----------------------------------------------------------------------------------------------


def compress(x: torch.Tensor, condition: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    positions = condition.nonzero().squeeze(1)
    return x.reshape(-1)[positions] if axis is None else x.index_select(axis, positions)


def compress_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(3, 4, 2, dtype=dtype)
    return [
        Case((x, torch.tensor([True, False, True])), {"axis": 0}),
        Case((x, torch.tensor([False, True])), {"axis": -2}),
        Case((x, torch.tensor([False, True, True, False, True]))),
    ]


def reverse_sequence(x: torch.Tensor, lengths: torch.Tensor, batch_axis: int = 1, time_axis: int = 0) -> torch.Tensor:
    rows = x.movedim(batch_axis, 0)
    out = [torch.cat([row[:n].flip(0), row[n:]]) for row, n in zip(rows, lengths.tolist())]
    return torch.stack(out, batch_axis)


def reverse_sequence_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((rand(4, 3, dtype=dtype), ints(4, 0, 2))),
        Case((rand(3, 5, 2, dtype=dtype), ints(1, 5, 3)), {"batch_axis": 0, "time_axis": 1}),
    ]


def tensor_scatter(
    cache: torch.Tensor,
    update: torch.Tensor,
    starts: torch.Tensor | None = None,
    axis: int = -2,
    mode: str = "linear",
) -> torch.Tensor:
    axis = axis % cache.dim()
    n, size = update.shape[axis], cache.shape[axis]
    out = []
    for b in range(cache.shape[0]):
        places = torch.arange(n) + (0 if starts is None else int(starts[b]))
        out.append(cache[b].index_copy(axis - 1, places % size, update[b]))
    return torch.stack(out)


def tensor_scatter_cases(dtype: torch.dtype) -> Sequence[Case]:
    cache, update = rand(2, 3, 6, 4, dtype=dtype), rand(2, 3, 2, 4, dtype=dtype)
    return [
        Case((cache, update)),
        Case((cache, update, ints(1, 4))),
        Case((cache, update, ints(5, 2)), {"mode": "circular"}),
        Case((rand(2, 6, 4, dtype=dtype), rand(2, 3, 4, dtype=dtype), ints(0, 3)), {"axis": 1}),
    ]


def scatter(x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int = 0) -> torch.Tensor:
    n = x.shape[axis]
    return x.scatter(axis, torch.where(indices < 0, indices + n, indices), updates)


def scatter_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [
        Case((rand(3, 3, dtype=dtype), torch.tensor([[1, 0, 2], [0, 2, 1]]), rand(2, 3, dtype=dtype))),
        Case((rand(1, 5, dtype=dtype), torch.tensor([[1, -2]]), rand(1, 2, dtype=dtype)), {"axis": 1}),
    ]


def unique(x: torch.Tensor, axis: int | None = None, sorted: int = 1) -> tuple[torch.Tensor, ...]:
    rows = x.reshape(-1, 1) if axis is None else x.movedim(axis, 0).flatten(1)
    keys = [tuple(row) for row in rows.tolist()]
    seen = list(dict.fromkeys(keys))
    values = in_order(seen) if sorted else seen
    first = torch.tensor([keys.index(v) for v in values])
    y = x.reshape(-1)[first] if axis is None else x.index_select(axis, first)
    inverse = torch.tensor([values.index(k) for k in keys])
    return y, first, inverse, torch.tensor([keys.count(v) for v in values])


in_order = sorted  # the name is an attribute of Unique


def unique_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.tensor([2.0, 1, 1, 3, 4, 3, 2]).to(dtype)
    rows = torch.tensor([[1.0, 0, 0], [1, 0, 0], [2, 3, 4], [0, 5, 5]]).to(dtype)
    return [
        Case((x,), outputs=4, smooth=False),
        Case((x,), {"sorted": 0}, outputs=4, smooth=False),
        Case((rows,), {"axis": 0}, outputs=4, smooth=False),
        Case((rows,), {"axis": -1, "sorted": 0}, outputs=4, smooth=False),
        Case((rows,), smooth=False),
        Case((torch.tensor([2.0, -1, 0.5, 3]).to(dtype),), outputs=4),
    ]


def cumprod(x: torch.Tensor, axis: torch.Tensor, exclusive: int = 0, reverse: int = 0) -> torch.Tensor:
    d = int(axis)
    x = x.flip(d) if reverse else x
    if exclusive:
        x = torch.cat([torch.ones_like(x.narrow(d, 0, 1)), x.narrow(d, 0, x.shape[d] - 1)], d)
    y = x.cumprod(d)
    return y.flip(d) if reverse else y


def cumprod_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = rand(2, 4, 3, dtype=dtype)
    zeros = x.clone()
    zeros[0, 1, 2] = 0
    return [
        Case((x, scalar(1)), constants=(1,)),
        Case((zeros, scalar(-2)), {"exclusive": 1}),
        Case((zeros, scalar(2)), {"reverse": 1}, (1,)),
        Case((x, scalar(0)), {"reverse": 1, "exclusive": 1}, (1,)),
    ]


def det_cases(dtype: torch.dtype) -> Sequence[Case]:
    singular = rand(3, 3, dtype=dtype)
    singular[2] = singular[0]
    return [Case((rand(4, 4, dtype=dtype),)), Case((rand(2, 5, 3, 3, dtype=dtype),)), Case((singular,))]


# -- features ----------------------------------------------------------------------------------------------------------


def array_feature_extractor(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(0) if x.dim() == 1 else x)[..., positions.reshape(-1)]


def array_feature_extractor_cases(dtype: torch.dtype) -> Sequence[Case]:
    return [Case((rand(3, 5, dtype=dtype), ints(4, 0, 4))), Case((rand(5, dtype=dtype), torch.tensor([[1, 3]])))]


def binarizer(x: torch.Tensor, threshold: float = 0.0) -> torch.Tensor:
    return (x > threshold).to(x.dtype)


def tf_idf(x: torch.Tensor, **attributes: object) -> torch.Tensor:
    """Of one- and two-item n-grams, as the cases have them."""
    pool, counts = list(attributes["pool_int64s"]), list(attributes["ngram_counts"])  # type: ignore[call-overload]
    grams = [(v,) for v in pool[: counts[1]]] + list(zip(pool[counts[1] :: 2], pool[counts[1] + 1 :: 2]))
    indexes = attributes["ngram_indexes"]
    rows = x if x.dim() == 2 else x.unsqueeze(0)
    out = torch.zeros(len(rows), max(indexes) + 1)  # type: ignore[call-overload]
    for r, row in enumerate(rows.tolist()):
        for k, gram in enumerate(grams):
            if len(gram) < attributes["min_gram_length"]:  # type: ignore[operator]
                continue
            if len(gram) == 1:
                found = row.count(gram[0])
            else:
                reach = range(1, attributes["max_skip_count"] + 2)  # type: ignore[operator]
                found = sum(row[i : i + d + 1 : d] == list(gram) for d in reach for i in range(len(row) - d))
            weights = attributes.get("weights")
            weight = weights[k] if weights and attributes["mode"] != "TF" else 1.0  # type: ignore[index]
            out[r, indexes[k]] = weight * (min(found, 1) if attributes["mode"] == "IDF" else found)  # type: ignore[index]
    return out if x.dim() == 2 else out[0]


def tf_idf_cases(dtype: torch.dtype) -> Sequence[Case]:
    x = torch.tensor([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])
    how = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 5,
        "ngram_counts": [0, 4],
        "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
        "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
    }
    weights = {"weights": [0.5, 2.0, 1.0, 3.0, 0.25, 4.0, 1.5]}
    return [
        Case((x,), how),
        Case((x[0],), {**how, "max_skip_count": 0}),
        Case((x,), {**how, **weights, "mode": "TFIDF", "min_gram_length": 2}),
        Case((x,), {**how, **weights, "mode": "IDF"}),
    ]


def det(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.det(x.float() if x.dtype == torch.bfloat16 else x).to(x.dtype)


ROWS = [
    Row("DFT", dft, dft_cases, tolerance=1e-4),
    Row("DFT", dft_of_opset_17, dft_of_opset_17_cases, tolerance=1e-4, opset=17),
    Row("STFT", stft, stft_cases, tolerance=1e-4, refuses=True),
    Row("HannWindow", hann, window_cases, differentiable=False),
    Row("HammingWindow", hamming, window_cases, differentiable=False),
    Row("BlackmanWindow", blackman, window_cases, differentiable=False),
    Row("MelWeightMatrix", mel_weight_matrix, mel_cases, differentiable=False),
    Row("Compress", compress, compress_cases),
    Row("ReverseSequence", reverse_sequence, reverse_sequence_cases),
    Row("TensorScatter", tensor_scatter, tensor_scatter_cases, opset=24, refuses=True),
    Row("Scatter", scatter, scatter_cases),
    # Among equal values, another value makes another number of outputs.
    Row("Unique", unique, unique_cases, refuses=True),
    Row("CumProd", cumprod, cumprod_cases, opset=26, tolerance=1e-4, wide=True),
    Row("Det", det, det_cases, tolerance=1e-4),
    Row("ArrayFeatureExtractor", array_feature_extractor, array_feature_extractor_cases, domain="ai.onnx.ml"),
    Row("Binarizer", binarizer, lambda t: [Case((rand(3, 4, dtype=t),), {"threshold": 0.5})], "ai.onnx.ml", False),
    Row("TfIdfVectorizer", tf_idf, tf_idf_cases, differentiable=False),
]
