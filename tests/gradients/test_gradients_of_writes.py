"""Gradients through forwards that write into a part of a tensor: as eager's."""

from __future__ import annotations

import pytest
import torch

from tests.support import Lambda, assert_same_gradients, pair


def test_a_complex_tensor_written_in_part_has_eagers_gradients() -> None:
    def spectral(module: Lambda, x: torch.Tensor) -> torch.Tensor:  # a layer of a Fourier neural operator
        spectrum = torch.fft.rfft(module.linear(x))
        kept = torch.zeros(*spectrum.shape, dtype=spectrum.dtype)
        kept[..., :2] = spectrum[..., :2] * torch.complex(module.linear.bias[:2], module.linear.bias[2:])
        kept[..., 2] = x.mean()  # real into complex, broadcast
        return torch.fft.irfft(kept, n=x.shape[-1])

    model, eager = pair(Lambda(spectral))
    for batch in (3, 5):
        x = torch.randn(batch, 4)
        for module in (model, eager):
            module.zero_grad()
            module(x).square().mean().backward()
        assert_same_gradients(model, eager)


@pytest.mark.parametrize("kept", [2, 4])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_write_into_a_slice_of_all_keeps_the_gradients(kept: int, hidden: bool) -> None:
    def ghost(module: Lambda, x: torch.Tensor) -> torch.Tensor:  # the sum of a residual block, made in place
        part = module.linear(x)[:, :kept]
        if hidden:
            with torch.no_grad():
                part.mul_(0.5)
        part += x[:, :kept]
        return part.tanh()

    model, eager = pair(Lambda(ghost))
    for batch in (3, 5):
        x = torch.randn(batch, 4)
        for module in (model, eager):
            module.zero_grad()
            module(x).square().mean().backward()
        torch.testing.assert_close(model(x), eager(x))
        assert_same_gradients(model, eager)
