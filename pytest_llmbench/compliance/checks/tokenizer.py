"""What the token counts refer to (section 4.4)."""

from __future__ import annotations

from pytest_llmbench.compliance.checks.registry import Checks, one_of, stated
from pytest_llmbench.compliance.look import Answer, Look
from pytest_llmbench.model.outcome import TokenSource
from pytest_llmbench.model.records import TOKEN_SOURCES

check = Checks()

VOCABULARIES = {
    "cl100k_base": (100_256, 100_277),
    "o200k_base": (199_998, 200_019),
    "p50k_base": (50_280, 50_281),
    "r50k_base": (50_256, 50_257),
}
"""Published vocabularies: name → ids without and with special tokens."""
OURS = "cl100k_base"
"""What the project's own reference tokenizer counts by."""
_REFERENCE = TOKEN_SOURCES.index(TokenSource.REFERENCE_TOKENIZER)

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
    """A positive number, and of a published vocabulary its own."""
    size, known = look.need("tokenizer.vocab_size"), VOCABULARIES.get(look.fact("tokenizer.name"))
    if known is not None and size not in known:
        return look.unmet(f"{look.fact('tokenizer.name')} has {known[1]} ids, {size!r} are declared")
    return look.answer(
        isinstance(size, int) and not isinstance(size, bool) and size > 0,
        f"{size} ids",
        f"tokenizer.vocab_size is {size!r}, not a positive number",
    )


@check("M-4.4.2-counting-option")
def counting_option(look: Look) -> Answer:
    """Declared always, not only where systems are compared (AMB-22), and what the counts come from."""
    option = look.need("tokenizer.counting_option")
    name, ours = look.fact("tokenizer.name"), _counted_here(look)
    if option == "B":
        reference = look.need("tokenizer.reference")
        counted = "the reference tokenizer here" if ours else f"the server, by {name}"
        return look.answer(
            reference == (OURS if ours else name),
            f"option B, reference tokenizer {reference}",
            f"option B with {reference} is declared, the counts are those of {counted}",
        )
    if option == "A" and ours and name != OURS:
        return look.unmet(f"option A is declared, and the tokens were counted here by {OURS}, not by {name}")
    return look.answer(
        option == "A", "option A, the system's own tokenizer", f"option {option!r} is neither A nor B"
    )


def _counted_here(look: Look) -> bool:
    """Whether some replies were counted by the project's own tokenizer."""
    records = look.evidence.records
    return bool((records.token_source[records.ok] == _REFERENCE).any())


__all__ = ["check"]
