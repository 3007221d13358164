"""What the token counts refer to (section 4.4)."""

from __future__ import annotations

from pytest_llmbench.compliance.checks.registry import Checks, one_of, stated
from pytest_llmbench.compliance.look import Answer, Look

check = Checks()

check("M-4.4.1-tokenizer-name-version")(stated("tokenizer.name", "tokenizer.version"))
check("M-4.4.1-tokenizer-source")(stated("tokenizer.source"))
check("M-4.4.3-bos-eos")(one_of("tokenizer.special.bos_eos", "included", "excluded"))
check("M-4.4.3-system-prompt-tokens")(
    one_of("tokenizer.special.system_prompt", "separate", "included", "none")
)
check("M-4.4.3-tool-format-tokens")(
    one_of("tokenizer.special.tool_format", "included", "excluded", "not_used")
)


@check("M-4.4.1-vocab-size")
def vocabulary_size(look: Look) -> Answer:
    size = look.need("tokenizer.vocab_size")
    return look.answer(
        isinstance(size, int) and not isinstance(size, bool) and size > 0,
        f"{size} ids",
        f"tokenizer.vocab_size is {size!r}, not a positive number",
    )


@check("M-4.4.2-counting-option")
def counting_option(look: Look) -> Answer:
    """Declared always, not only where systems are compared (AMB-22)."""
    option = look.need("tokenizer.counting_option")
    if option == "B":
        return look.met(f"option B, reference tokenizer {look.need('tokenizer.reference')}")
    return look.answer(
        option == "A", "option A, the system's own tokenizer", f"option {option!r} is neither A nor B"
    )


__all__ = ["check"]
