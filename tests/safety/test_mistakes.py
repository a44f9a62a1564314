"""Each mistake of the list (mistakes.py) ends in an error that names what is wrong and says what to do or expect."""

from __future__ import annotations

import pytest

from ortmodule import InternalError, ORTModuleError

from .mistakes import MISTAKES

# What eager PyTorch raises for the same mistake.
AS_PYTORCH = {
    "backward twice": RuntimeError, "a parameter that was changed": RuntimeError,
    "an index that is out of range": IndexError,
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_message_names_what_is_wrong_and_what_to_do(name: str) -> None:
    mistake = MISTAKES[name]
    with pytest.raises(AS_PYTORCH.get(name, ORTModuleError)) as caught:
        mistake.make()
    text = str(caught.value)
    assert not isinstance(caught.value, InternalError)
    assert mistake.named in text and mistake.told in text, text
    assert "Traceback" not in text and "C++" not in text, text


def test_there_are_fifty_mistakes() -> None:
    print(f"{len(MISTAKES)} mistakes")
    assert len(MISTAKES) >= 50
