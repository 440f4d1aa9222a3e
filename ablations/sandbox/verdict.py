"""What came of one generated program."""

from typing import Literal

from layerswap_method.frozen import Frozen


class ProgramVerdict(Frozen):
    """What came of one program. The same in every run of a program that does the same."""

    status: Literal["passed", "failed", "timeout", "memory", "output"]
    """``passed``: it ran to the end of its tests. Else what stopped it."""

    detail: str
    """One printable line that says why it has not passed, in words; empty if it has."""
