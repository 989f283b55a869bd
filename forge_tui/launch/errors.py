"""What a failed load or launch raises."""

from __future__ import annotations

from forge_tui.core.errors import EnvironmentFault, ExitCode, ForgeError


class LaunchError(ForgeError):
    """A kernel could not be loaded or launched, or said itself that it failed.

    `code` is the CUDA error's name (`CUDA_ERROR_INVALID_VALUE`) or empty; `returned` is what a CPU kernel returned.
    """

    exit_code = ExitCode.KERNEL_NOT_RIGHT

    def __init__(self, what: str, *, code: str = "", returned: int | None = None) -> None:
        super().__init__(what)
        self.code = code
        self.returned = returned


class WrongFile(LaunchError):
    """The file is missing, or another one than was built: no fault of the kernel."""


class DriverMissing(EnvironmentFault):
    """There is no CUDA driver library on this machine, or it is too old for what is asked."""
