"""The source of the instants of reads, and how often it did not work."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_llmbench.model.observation import READ_STAMPS

USER_SPACE = READ_STAMPS
KERNEL = "kernel (SO_TIMESTAMPNS)"


@dataclass(frozen=True, slots=True)
class Stamping:
    """Counts since a transport was made, or since an earlier look at it."""

    kernel: bool = False
    """Reads are stamped by the kernel."""
    unstamped: int = 0
    """Reads that have the instant of the read, since the kernel gave none."""
    distrusted: int = 0
    """Reads that have the instant of the read, since the kernel's could not be true: a step of the clock."""
    too_early: int = 0
    """Reads whose stamp lay before the submission or the read before, and was moved there."""
    clock_steps: int = 0
    """Steps of the wall clock, which the kernel stamps by."""

    def since(self, earlier: Stamping) -> Stamping:
        return Stamping(
            self.kernel,
            self.unstamped - earlier.unstamped,
            self.distrusted - earlier.distrusted,
            self.too_early - earlier.too_early,
            self.clock_steps - earlier.clock_steps,
        )

    def source(self, reads: int) -> str:
        """The source of ``reads`` stamps, with the exceptions, if there were any; for the self-check."""
        if not self.kernel or 0 < reads <= self.unstamped:
            return USER_SPACE
        told = {
            f"of {reads} reads in user space": self.unstamped + self.distrusted,
            "moved to what came before them": self.too_early,
            "steps of the wall clock": self.clock_steps,
        }
        exceptions = [f"{count} {what}" for what, count in told.items() if count > 0]
        return f"{KERNEL}; {', '.join(exceptions)}" if exceptions else KERNEL
