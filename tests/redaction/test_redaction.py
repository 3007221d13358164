"""No secret in anything that is written."""

from __future__ import annotations

import base64
import codecs
import html
import json
import zlib
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.redaction import (
    REDACTED,
    SHORTEST_SECRET,
    Redactor,
    keep_secret,
    keep_secrets_of,
    keep_secrets_of_program,
    outward,
    outward_value,
    terminal_text,
    without_credentials,
)

CANARY = "sk-canary/+é \"7'&x"
SECRETS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=["Cc", "Cf", "Zs"]),
    min_size=8,
    max_size=40,
)


@pytest.mark.parametrize(
    "form",
    [
        CANARY,
        quote(CANARY),
        quote(CANARY, safe=""),
        quote_plus(CANARY),
        quote(CANARY, safe="").lower(),
        json.dumps(CANARY)[1:-1],
        json.dumps(CANARY, ensure_ascii=False)[1:-1],
        html.escape(CANARY),
        repr(CANARY)[1:-1],
    ],
)
def test_each_form_is_taken_out(form: str) -> None:
    assert Redactor([CANARY]).text(f"key={form}; rest") == f"key={REDACTED}; rest"


@pytest.mark.parametrize("user", ["", "u", "us", "user"])
def test_a_secret_inside_basic_authorization(user: str) -> None:
    header = base64.b64encode(f"{user}:{CANARY}".encode()).decode()
    redacted = Redactor([CANARY]).text(f"Basic {header}")
    assert REDACTED in redacted
    left = redacted.replace("Basic ", "").replace(REDACTED, "")
    assert len(left) <= len(header) - len(CANARY)


def test_nested_values_and_keys() -> None:
    value = {"a": [f"x {CANARY}", 1, None, True], CANARY: {"b": (CANARY,)}}
    assert Redactor([CANARY]).value(value) == {
        "a": [f"x {REDACTED}", 1, None, True],
        REDACTED: {"b": [REDACTED]},
    }


def test_the_longer_of_two_secrets_goes_whole() -> None:
    assert Redactor(["secret-1", "secret-1-long"]).text("secret-1-long") == REDACTED


def test_placeholders_are_no_secrets() -> None:
    text = "none of it is EMPTY"
    assert Redactor(["none", "EMPTY", "", "x" * (SHORTEST_SECRET - 1)]).text(text) == text


def test_without_secrets_nothing_changes() -> None:
    value = {"a": ["b"]}
    assert Redactor().value(value) is value


@settings(max_examples=60)
@given(secret=SECRETS, before=st.text(max_size=20), after=st.text(max_size=20))
def test_no_secret_survives_in_json(secret: str, before: str, after: str) -> None:
    if secret in REDACTED:
        return
    redacted = Redactor([secret]).value({"text": before + secret + after, "list": [secret]})
    assert secret not in redacted["text"].replace(REDACTED, "\0")
    assert redacted["list"] == [REDACTED]


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("https://user:pass@[::1]:8000/v1", "https://[::1]:8000/v1"),
        ("wss://key@host/v1?token=abc&model=m", "wss://host/v1?token=[redacted]&model=m"),
        ("sim:fast", "sim:fast"),
        ("key@localhost:8000/v1", "localhost:8000/v1"),
        ("user:key@localhost:8000", "localhost:8000"),
        ("http://[broken/v1", "http://[broken/v1"),
    ],
)
def test_urls_lose_credentials(url: str, clean: str) -> None:
    assert without_credentials(url) == clean


def test_options_of_the_embedded_engine_are_no_secrets() -> None:
    keep_secrets_of("replay:fast?kv_us_per_token=0.00123&decode_us_per_sequence=6.3")
    assert outward("it took 0.00123 s") == "it took 0.00123 s"


def test_secrets_of_a_url_in_every_form_of_it() -> None:
    keep_secrets_of("https://user:pa%2Fss-word@host/v1?api_key=sk-canary-1&model=m-long-name")
    said = "pa%2Fss-word pa/ss-word sk-canary-1 m-long-name"
    assert outward(said) == f"{REDACTED} {REDACTED} {REDACTED} m-long-name"


@pytest.mark.parametrize("cut", ["…", "", "…) and more"])
def test_what_is_left_of_a_secret_that_was_cut(cut: str) -> None:
    keep_secret("sk-canary-0123456789")
    assert outward(f"key sk-canary-01234{cut}") == f"key {REDACTED}{cut}"
    assert outward(f"key SK-CANARY-01234{cut}") == f"key {REDACTED}{cut}"


KEY = "sk-canary/7A+q<\"x'-9b3Z5w"
SPELLED: dict[str, list[str]] = {
    "plain": list(KEY),
    "percent": [f"%{ord(sign):02X}" for sign in KEY],
    "decimal entities": [f"&#{ord(sign)};" for sign in KEY],
    "hexadecimal entities": [f"&#x{ord(sign):04x};" for sign in KEY],
    "named entities": [html.escape(sign) for sign in KEY],
    "unicode escapes": [f"\\u{ord(sign):04x}" for sign in KEY],
    "byte escapes": [f"\\\\x{ord(sign):02x}" for sign in KEY],
    "mixed": [f"\\u{ord(sign):04X}" if place % 2 else sign for place, sign in enumerate(KEY)],
}
"""Each character of the key, in each spelling."""


@pytest.mark.parametrize("spelling", SPELLED)
@pytest.mark.parametrize("ellipsis", ["…", "..."])
def test_a_secret_cut_anywhere_in_any_spelling(spelling: str, ellipsis: str) -> None:
    """Where six characters of it are left; an escape that was cut through goes with them."""
    keep_secret(KEY)
    signs = SPELLED[spelling]
    whole = "".join(signs)
    ends = [len("".join(signs[: n + 1])) for n in range(len(signs))]
    for cut in range(ends[SHORTEST_SECRET - 1], len(whole)):
        kept = f"key {whole[:cut]}{ellipsis} of it"
        assert outward(kept) == f"key {REDACTED}{ellipsis} of it", kept
    for cut in range(1, ends[-SHORTEST_SECRET - 1]):
        kept = f"of it {ellipsis}{whole[cut:]} key"
        assert outward(kept) == f"of it {ellipsis}{REDACTED} key", kept


@pytest.mark.parametrize("spelling", SPELLED)
def test_a_secret_cut_in_the_midst_of_a_long_text(spelling: str) -> None:
    """Only what lies near a cut is read without escapes, and there all of it."""
    keep_secret(KEY)
    signs, long = SPELLED[spelling], "50% & more, " * 200
    beginning, end = "".join(signs[:SHORTEST_SECRET]), "".join(signs[-SHORTEST_SECRET:])
    for before, after in (("", long), (long, long), (long, "")):
        kept = f"{before}{beginning}…{after}...{end}{after}…"
        assert outward(kept) == f"{before}{REDACTED}…{after}...{REDACTED}{after}…"
    assert outward(f"{long}{beginning}{long}") == f"{long}{beginning}{long}"


def test_a_secret_in_base64_cut() -> None:
    keep_secret(KEY)
    whole = base64.b64encode(f"user:{KEY}".encode()).decode()
    for cut in range(14, len(whole) - 4):
        left = outward(f"key {whole[:cut]}… of it").removeprefix("key ").removesuffix("… of it")
        assert REDACTED in left
        assert len(left) <= len(REDACTED) + 7, "what depends on the user too"


NESTED = base64.b64encode(f"Bearer {KEY}".encode()).decode()
BROKEN: dict[str, str] = {
    "over two lines": f"{KEY[:11]}\n    {KEY[11:]}",
    "over two lines of JSON": json.dumps(f"{KEY[:11]}\r\n{KEY[11:]}"),
    "percent, twice": quote(quote(KEY, safe=""), safe=""),
    "percent, three times": quote(quote(quote(KEY, safe=""), safe=""), safe=""),
    "entities of entities": html.escape(html.escape(KEY)),
    "percent within JSON within JSON": json.dumps(json.dumps(quote(KEY))),
    "hexadecimal digits": KEY.encode().hex(),
    "hexadecimal digits in capitals, spaced": KEY.encode().hex(" ").upper(),
    "base64 twice": base64.b64encode(NESTED.encode()).decode(),
    "base64 in lines": "\n".join(NESTED[n : n + 9] for n in range(0, len(NESTED), 9)),
    "base64, percent": quote(NESTED, safe=""),
    "a tag inside": f"{KEY[:8]}<wbr>{KEY[8:13]}<b class='x'>{KEY[13:]}",
    "a tag in entities inside": f"{KEY[:8]}&lt;wbr&gt;{KEY[8:]}",
    "zero width": "\u200b".join(KEY),
    "a soft hyphen in an entity": "&#173;".join(KEY),
    "NUL": "\0".join(KEY),
    "NUL in escapes": "\\u0000".join(KEY.replace('"', '\\"')),
    "spaced": " ".join(KEY),
    "braces": "".join(f"\\u{{{ord(sign):x}}}" for sign in KEY),
    "eight digits": "".join(f"\\U{ord(sign):08x}" for sign in KEY),
    "octal": "".join(f"\\{ord(sign):03o}" for sign in KEY),
    "of escape()": "".join(f"%u{ord(sign):04x}" for sign in KEY),
}
"""The key as nobody spells it but a server that means it, or a badly made one."""


@pytest.mark.parametrize("spelling", BROKEN)
def test_a_secret_that_is_broken_or_wrapped(spelling: str) -> None:
    keep_secret(KEY)
    said = outward(f"of it ({BROKEN[spelling]}) the rest")
    assert REDACTED in said
    left = said.replace(REDACTED, "").removeprefix("of it (").removesuffix(") the rest")
    assert len(left) <= 24, "what stands around the key within base64 or quotes"


ADMITTED: dict[str, str] = {
    "compressed": base64.b64encode(zlib.compress(KEY.encode())).decode(),
    "backwards": KEY[::-1],
    "other scripts": KEY.translate(str.maketrans("acsxZbwky", "асѕхΖЬԝку")),
    "full width": "".join(chr(ord(sign) + 0xFEE0) for sign in KEY),
    "accents": "\u0301".join(KEY),
    "words": " and ".join(KEY),
    "dots": ".".join(KEY),
    "a list of them": json.dumps(list(KEY)),
    "colons": KEY.encode().hex(":"),
    "commas": KEY.encode().hex(","),
    "0x": " ".join(f"0x{sign:02x}" for sign in KEY.encode()),
    "decimal": str(list(KEY.encode())),
    "octal": " ".join(f"{sign:o}" for sign in KEY.encode()),
    "binary": " ".join(f"{sign:08b}" for sign in KEY.encode()),
    "quoted-printable": "".join(f"={sign:02X}" for sign in KEY.encode()),
    "base32": base64.b32encode(KEY.encode()).decode(),
    "base85": base64.b85encode(KEY.encode()).decode(),
    "uuencode": codecs.encode(KEY.encode(), "uu").decode(),
    "three times": base64.b64encode(base64.b64encode(NESTED.encode())).decode(),
    "hexadecimal digits within": base64.b64encode(KEY.encode().hex().encode()).decode(),
    "UTF-16": KEY.encode("utf-16-le").hex(),
    "four escapes": quote(quote(quote(quote(KEY, safe=""), safe=""), safe=""), safe=""),
}
"""Words of SECURITY.md → the spelling that it says is not found."""


@pytest.mark.parametrize("words", ADMITTED)
def test_what_is_not_found_is_admitted(words: str) -> None:
    keep_secret(KEY)
    told = " ".join((Path(__file__).parents[2] / "SECURITY.md").read_text("utf-8").split())
    assert words in told.partition("**not found**")[2].partition("is not looked for")[0]
    assert REDACTED not in outward(f"of it ({ADMITTED[words]}) the rest")


@pytest.mark.parametrize(
    "mark", [" (truncated)", "[truncated 40 characters]", "***", "... [9 more]", "<snip>", "\n"]
)
def test_what_is_left_of_a_secret_before_the_mark_of_a_server(mark: str) -> None:
    keep_secret(KEY)
    said = outward(f"key {KEY[:SHORTEST_SECRET]}{mark}")
    assert said.startswith(f"key {REDACTED}")
    assert KEY[:4] not in said


def test_half_of_a_secret_goes_wherever_it_stands() -> None:
    keep_secret(KEY)
    assert outward(f"key {KEY[:13]}; and so on") == f"key {REDACTED}; and so on"
    assert outward(f"and {KEY[-13:]}; and so on") == f"and {REDACTED}; and so on"


def test_words_before_an_ellipsis_stay() -> None:
    keep_secret(KEY)
    for text in ("sk-can… of it", "100%…", "a & b…", "C:\\path…w", "...", "&#115;&#107;… the rest"):
        expected = text if not text.startswith("sk-can") else f"{REDACTED}… of it"
        assert outward(text) == expected


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        ("::error file=a.py::no", ": :error file=a.py::no"),
        (" \t::add-mask::a", " \t: :add-mask::a"),
        ("first\n  ::stop-commands::x\n::endgroup::", "first\n  : :stop-commands::x\n: :endgroup::"),
        ("a ##[warning]b ##vso[task.setvariable]c", "a # #[warning]b # #vso[task.setvariable]c"),
        ("first\r::error::x", "first\ufffd::error::x"),
    ],
)
def test_no_line_that_is_printed_is_a_command_to_a_ci_system(said: str, printed: str) -> None:
    assert terminal_text(said) == printed
    assert "error::" not in said or "error::" in outward(said), "a report keeps what was said"


@pytest.mark.parametrize("said", ["t.py::test_a[x::y]", "a::error::b", "::", "  :: b", "## Title", "#[x]"])
def test_what_is_no_command_is_printed_as_it_is(said: str) -> None:
    assert terminal_text(said) == said


def test_what_moves_a_cursor_is_replaced() -> None:
    assert outward("a\x1b[2J\u202eb\ud800\nc\td") == "a\ufffd[2J\ufffdb\ufffd\nc\td"
    assert outward_value({"\x00": ["\x07", 1]}) == {"\ufffd": ["\ufffd", 1]}


def test_what_a_program_is_started_with() -> None:
    command = [
        "serve",
        "--api-key",
        KEY,
        "--tokenizer",
        "meta/llama-3",
        "--max-tokens=409600",
        f"--token={KEY[::-1]}",
    ]
    keep_secrets_of_program(command, {"HF_TOKEN": KEY.upper()[::-1], "NCCL_DEBUG": "INFORMATION"})
    for secret in (KEY, KEY[::-1], KEY.upper()[::-1]):
        assert outward(f"it says {secret} there") == f"it says {REDACTED} there"
    for word in ("meta/llama-3", "409600", "INFORMATION", "serve"):
        assert outward(word) == word
