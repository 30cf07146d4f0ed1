"""Convert LaTeX of docstrings to plain text, for terminals."""

from __future__ import annotations

import re

# Commands with their plain text. Others, such as Greek letters and functions, become their names.
_SIGNS = {
    "leftarrow": "<-", "le": "<=", "leq": "<=", "geq": ">=", "neq": "!=", "times": "x",
    "cdot": "*", "dots": "...", "ldots": "...", "top": "T", "bmod": "mod",
    "lVert": "||<", "rVert": ">||", "|": "||", "quad": "\0", "qquad": "\0", ",": " ",
    "pm": "+-", "langle": "<", "rangle": ">",
    "left": "", "right": "", "Bigl": "", "Bigr": "",
}  # fmt: skip
_TEXTS = ("text", "texttt", "operatorname")
_ACCENTS = ("hat", "bar", "tilde")
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\d+|\s+|.", re.DOTALL)
# Marks around a fraction, next to which a product needs a sign, and around words.
_BEGIN, _END, _WORDS = "\1", "\2", "\3"


def plain_text(text: str) -> str:
    """Return a text with its formulas in plain characters, each displayed equation on a line."""
    text = re.sub(r"\$\$(.+?)\$\$", lambda found: _block(found[1]), text, flags=re.DOTALL)
    return re.sub(r"\$([^$]+)\$", lambda found: _line(found[1]), text)


def _block(formula: str) -> str:
    formula = re.sub(r"\\(begin|end)\{aligned\}", "", formula)
    cases = r"\\begin\{cases\}(.+?)\\end\{cases\}"
    formula = re.sub(cases, lambda found: _cases(found[1]), formula, flags=re.DOTALL)
    lines = re.split(r"\\\\|,\s*\\qquad", formula)
    return "\n".join("    " + _line(line) for line in lines if line.strip())


def _cases(alternatives: str) -> str:
    """Return LaTeX with the alternatives of a formula on one line."""
    return r"\{" + alternatives.strip().replace(r"\\", ";").replace("&", ",") + r"\}"


def _line(formula: str) -> str:
    first, *others = formula.replace("&&", "&").split("&", 1)
    formula = first + (others[0].replace("&", r"\quad\quad ") if others else "")
    text = _sequence(_TOKEN.findall(" ".join(formula.split()))[::-1])
    text = text.replace("||< ", "||").replace(" >||", "||")
    text = re.sub(rf"(?<=[\w)|'{_END}]) *{_BEGIN}|{_END} *(?=[\w(|])", " * ", text)
    text = re.sub(r"(sum_\S+) \* ", r"\1 ", text)
    text = re.sub(rf"[{_BEGIN}{_END}{_WORDS}]", "", text)
    text = re.sub(r" *\0[ \0]*", "  ", re.sub(" +", " ", text))
    return re.sub(r" +(?=[,;)])", "", text).strip()


def _sequence(tokens: list[str]) -> str:
    """Return the text of tokens up to the end of a group; the tokens are in reverse order."""
    found = ""
    while tokens and tokens[-1] != "}":
        found += _next(tokens)
    return found


def _next(tokens: list[str]) -> str:
    """Return the text of the next token or group, with the arguments of a command."""
    token = tokens.pop()
    name = token[1:]
    if token == "{":
        inside = _sequence(tokens)
        tokens.pop()
        return inside
    if token in "^_":
        return token + _bracketed(_argument(tokens), r"[\w|]+")
    if not token.startswith("\\"):
        return token
    if name in _TEXTS:
        return _WORDS + _sequence_of_text(tokens) + _WORDS
    if name == "frac":
        above, below = _argument(tokens), _argument(tokens)
        above = _bracketed(above, r"(?:[^-+()]|\([^()]*(?:\([^()]*\)[^()]*)*\))*")
        below = _bracketed(below, r"[\w.^|]*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?")
        return f"{_BEGIN}{above} / {below}{_END}"
    if name == "sqrt":
        return f"sqrt({_argument(tokens)})"
    if name in _ACCENTS:
        return f"{_argument(tokens)}_{name}"
    return _SIGNS.get(name, name)


def _argument(tokens: list[str]) -> str:
    while tokens[-1].isspace():
        tokens.pop()
    return _next(tokens).strip(_WORDS)


def _sequence_of_text(tokens: list[str]) -> str:
    """Return the characters of a group unchanged."""
    tokens.pop()
    found = ""
    while (token := tokens.pop()) != "}":
        found += token.removeprefix("\\")
    return found


def _bracketed(text: str, single: str) -> str:
    """Return the text in brackets, unless it matches the pattern of a single factor."""
    return text if re.fullmatch(single, text) else f"({text})"
