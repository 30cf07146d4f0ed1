"""The pages: what stands on each, from docstrings, signatures, the registry and what was run."""

from __future__ import annotations

import dataclasses
import html
import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

import keras_tfopt
import keras_tfopt.legacy
from integration import catalogue, stock_defects
from integration.reference import docstrings, names, runs

# Optimizers to derive from.
ABSTRACT = (keras_tfopt.Rule, keras_tfopt.Wrapper, keras_tfopt.distributed.OverWorkers)
CATALOGUE = Path(__file__).parents[2] / "guides" / "optimizers.md"


@dataclasses.dataclass(frozen=True)
class Page:
    """A file of the site: its content without what all pages have."""

    file: str
    title: str
    body: str
    full: bool = False  # whether it takes the width of the window


def file_of(path: str) -> str:
    """The page of a public name; `Info` and `info` are one name to some file systems."""
    alike = [e.path for e in names.public() if e.path.lower() == path.lower()]
    return f"{path}{'-' * alike.index(path)}.html"


def link(path: str, text: str | None = None) -> str:
    return f'<a href="{file_of(path)}"><code>{html.escape(text or path)}</code></a>'


def linked(body: str) -> str:
    """Names of this package in code become links to their pages."""
    known = {entry.path for entry in names.public()}

    def replaced(match: re.Match) -> str:
        path = match[1]
        return link(path) if path in known else match[0]

    return re.sub(r"(?<!\">)<code>(keras_tfopt(?:\.\w+)+)</code>", replaced, body)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in header)
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _facts(rows: Mapping[str, str]) -> str:
    lines = "\n".join(f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in rows.items())
    return f'<table class="facts">\n{lines}\n</table>'


# ---- A page of a name ----------------------------------------------------------------------------


def signature(path: str, item: Any) -> str:
    """How it is called: on one line if that is short, else an argument a line."""
    try:
        parameters = list(inspect.signature(item).parameters.values())
    except (TypeError, ValueError):
        return path
    parameters = [p.replace(annotation=p.empty) for p in parameters if p.name != "self"]
    texts = [str(p) for p in parameters]
    kinds = [p.kind for p in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        texts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    line = f"{path}({', '.join(texts)})"
    if len(line) <= 88:
        return line
    return f"{path}(\n" + "".join(f"    {text},\n" for text in texts) + ")"


def page_of(entry: names.Entry, registered: Mapping[Any, str]) -> Page:
    """The page of one public name; `registered` has the names of optimizers by their class."""
    item, name = entry.item, registered.get(entry.item)
    module = f"<small>{html.escape(entry.module)}.</small>" if entry.module else ""
    parts = [f"<h1>{module}{html.escape(entry.name)}</h1>"]
    parts.append(f"<pre><code>{html.escape(signature(entry.path, item))}</code></pre>")
    text = inspect.getdoc(item) or ""
    first, *others = [docstrings.html(part) for part in text.split("\n\n", 1)]
    if name is not None:
        parts += [first, registry_facts(name), *others, pictures_of(name)]
    else:
        parts += [first, *others]
    if inspect.isclass(item):
        parts.append(methods_of(item))
    return Page(file_of(entry.path), entry.path, linked("\n".join(parts)))


def registry_facts(name: str) -> str:
    """What the registry has beside the docstring."""
    info = keras_tfopt.info(name)
    facts = {
        "Name": f'<code>keras_tfopt.get("{name}{"(...)" if runs.is_wrapper(name) else ""}")</code>',
        "State": f"{info.bytes_per_parameter:.3g} bytes a parameter (float32, a large matrix)",
    }
    if info.scope:
        facts["One call sees"] = {
            "element": "any elements",
            "variable": "a variable",
            "model": "all variables",
        }[info.scope]
    if issubclass(info.optimizer_class, keras_tfopt.Rule):
        facts["Row gradient"] = catalogue.rows_of(info.optimizer_class)
    if info.originals:
        facts["Stands for"] = ", ".join(_original(name) for name in info.originals)
    return _facts(facts)


def _original(dotted: str) -> str:
    """The name of an original; it links to the class with its verbs, where there is one."""
    path = f"keras_tfopt.legacy.{dotted.rpartition('.')[2]}"
    known = {entry.path for entry in names.public()}
    return link(path, dotted) if path in known else f"<code>{dotted}</code>"


def pictures_of(name: str) -> str:
    """The pictures, with how they were made."""
    found, beside = runs.curve(name), runs.beside(name)
    of = " with the averages" if found.of_averages else ""
    on_digits = runs.call(name, runs.ON_DIGITS.get(name, {}), found.rate)
    on_functions = runs.ON_FUNCTIONS.get(name)
    same = "" if on_functions is None else f", with {_arguments(on_functions)}"
    other = keras_tfopt.info(beside).optimizer_class.__name__
    dashed = "" if name == beside else f" Dashed: <code>keras_tfopt.{other}</code>, the same way."
    return f"""<h2>On digits</h2>
<figure><img src="pictures/{name}-digits.svg" width="672" height="269"
alt="Loss by epoch on scanned digits">
<figcaption><code>{html.escape(on_digits)}</code>. Accuracy on images not trained on{of}:
{found.accuracy:.3f}. <a href="digits.html">The task, and all optimizers on it.</a>{dashed}
</figcaption></figure>
<h2>On two functions</h2>
<figure><img src="pictures/{name}-paths.svg" width="672" height="355"
alt="Paths on the functions of Rosenbrock and Beale">
<figcaption>{runs.STEPS} steps{same}. <a href="digits.html#functions">How these runs are made.</a>
</figcaption></figure>"""


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"<code>{html.escape(f'{k}={v!r}')}</code>" for k, v in arguments.items())


def methods_of(cls: type) -> str:
    """Its public methods and properties: of abstract bases also what comes from the engine."""
    owners = [cls]
    if cls in (*ABSTRACT, keras_tfopt.legacy.Optimizer):
        owners = [c for c in cls.__mro__ if c.__module__.startswith("keras_tfopt")]
    found = {}
    for owner in owners:
        for name, member in vars(owner).items():
            is_method = inspect.isfunction(member) or isinstance(
                member, (property, classmethod, staticmethod)
            )
            text = inspect.getdoc(getattr(cls, name)) if is_method else None
            if not name.startswith("_") and text and getattr(member, "__doc__", None):
                found.setdefault(name, (member, text))
    if not found:
        return ""
    parts = ["<h2>Methods</h2>"]
    for name, (member, text) in found.items():
        is_property = isinstance(member, property)
        head = name if is_property else signature(name, getattr(cls, name))
        body = re.sub(r"<(/?)h2>", r"<\1h4>", docstrings.html(text))
        parts.append(f"<h3><code>{html.escape(head)}</code></h3>\n{body}")
    return "\n".join(parts)


# ---- Pages of tables -----------------------------------------------------------------------------


def optimizer_rows(wrappers: bool) -> list[list[str]]:
    rows = []
    for name in keras_tfopt.list_optimizers(exclude="keras.*"):
        info = keras_tfopt.info(name)
        cls = info.optimizer_class
        if wrappers == issubclass(cls, keras_tfopt.Rule):
            continue
        rows.append(
            [
                link(names.path_of(cls) or "", cls.__name__),
                docstrings.markdown(info.description).removeprefix("<p>").removesuffix("</p>"),
                docstrings.markdown(info.row_gradients.split(". ")[0])
                .removeprefix("<p>")
                .removesuffix("</p>")
                if wrappers
                else catalogue.rows_of(cls),
                f"{info.bytes_per_parameter:.3g}",
            ]
        )
    return sorted(rows, key=lambda row: row[0].lower())


def index() -> Page:
    header = ["name", "what it does", "a row gradient", "bytes a parameter"]
    others = [
        [link(entry.path), docstrings.markdown(_first_line(entry.item))]
        for entry in names.public()
        if not _is_optimizer(entry.item) and entry.module != "keras_tfopt.legacy"
    ]
    body = f"""<h1>Reference of keras_tfopt {keras_tfopt.__version__}</h1>
<p>The optimizers of TensorFlow 1 for Keras 3, on TensorFlow, JAX and PyTorch. Every page is made
from the docstring of what it is about, and from runs of it: <code>make reference</code>.</p>
<ul>
<li><a href="digits.html">All optimizers on one task</a>, and how the pictures are made</li>
<li><a href="differences.html">Differences</a> from the originals, and from Keras's optimizers of
the
same names</li>
<li><a href="defects.html">What stock Keras gets wrong</a>, measured</li>
<li><a href="tf1.html">Names of TensorFlow 1</a>, and what each is here</li>
<li><a href="keras.html">Keras's own optimizers</a>, as the registry knows them</li>
</ul>
<h2 id="optimizers">Optimizers</h2>
{table(header, optimizer_rows(wrappers=False))}
<h2 id="wrappers">Around other optimizers</h2>
{table(header, optimizer_rows(wrappers=True))}
<h2 id="others">Everything else</h2>
{table(["name", "what it is"], others)}"""
    return Page("index.html", "Reference", linked(body))


def _is_optimizer(item: Any) -> bool:
    is_optimizer = inspect.isclass(item) and issubclass(item, keras.optimizers.Optimizer)
    return is_optimizer and item not in ABSTRACT


def _first_line(item: Any) -> str:
    return (inspect.getdoc(item) or "").split("\n", 1)[0]


def digits() -> Page:
    rows = []
    for name in keras_tfopt.list_optimizers(exclude="keras.*"):
        found = runs.curve(name)
        cls = keras_tfopt.info(name).optimizer_class
        path = names.path_of(cls) or ""
        code = runs.call(name, runs.ON_DIGITS.get(name, {}), found.rate)
        rows.append(
            [
                link(path, cls.__name__),
                f"<code>{html.escape(code.removeprefix('keras_tfopt.'))}</code>",
                f"{found.losses[-1]:.4f}",
                f"{found.accuracy:.3f}" + ("*" if found.of_averages else ""),
            ]
        )
    x, _, x_other, y_other = runs.digits()
    error = (0.97 * 0.03 / len(y_other)) ** 0.5
    rates = ", ".join(f"{rate:.2g}" for rate in runs.RATES)
    functions = " and ".join(function.name for function in runs.FUNCTIONS)
    inside = keras_tfopt.info(runs.INSIDE).optimizer_class.__name__
    body = f"""<h1>All optimizers on one task</h1>
<p>The {len(x) + len(x_other):,} scanned digits of scikit-learn, 8 by 8 pixels; a network with
one hidden
layer of {runs.HIDDEN} units (tanh); {len(x):,} images to train on in batches of {runs.BATCH} for
{runs.EPOCHS} epochs, {len(x_other)} others to choose by. Initial weights and batches are the
same for
all. Of the learning rates {rates} the one with the lowest loss on the other images is shown;
everything
else is as by default, but for what the calls below say. Wrappers are around
<code>keras_tfopt.{inside}</code>.</p>
<p>This shows how each behaves. It ranks nothing: one small task, one seed, accuracies with a
standard
error of about {error:.3f} on the images that the learning rate was chosen by, and no schedules,
which
large batches need and optimizers such as LARS are made for.</p>
{table(["optimizer", "made by", "training loss, last epoch", "accuracy"], rows)}
<p class="quiet">* of the averages.</p>
<h2 id="functions">Paths on two functions</h2>
<p>{functions}, {runs.STEPS} steps without noise from a fixed start. Of the same learning rates
the one is
shown that ends lowest without leaving the picture on the way. A point stands for each tenth step.
Contours are those of equal logarithmic distance. Two numbers say little of networks: they show
oscillation, the size of first steps, and whether a rule goes along axes or along the gradient.
An optimizer that starts from an origin of its own, such as
<code>keras_tfopt.AdagradDA</code>, leaves the start at once.</p>"""
    return Page("digits.html", "All optimizers on one task", linked(body))


def differences() -> Page:
    # As the catalogue has them: its test computes them again on each backend.
    text = CATALOGUE.read_text(encoding="utf-8")
    distances = text[text.rindex("| recording |") :]
    rows = []
    for name in keras_tfopt.list_optimizers(exclude="keras.*"):
        info = keras_tfopt.info(name)
        path = names.path_of(info.optimizer_class) or ""
        rows.append(
            [link(path, info.optimizer_class.__name__), docstrings.markdown(info.differences)]
        )
    body = f"""<h1>Differences</h1>
<h2>In numbers: beside Keras's optimizers of the same names</h2>
<p>Recorded runs of TensorFlow 1.15.5, run again with Keras's optimizer of that name and with
ours, with
the same arguments and gradients. The distance is that of variables after the last step from the
recorded
ones, relative to how far these have moved; none is less than 0.01 %. Row gradients are given to
Keras's as
dense ones, the way <code>fit</code> does on JAX and PyTorch.</p>
<div class="wide">{docstrings.markdown(distances)}</div>
<h2>In words: from the originals and from Keras</h2>
{table(["optimizer", "differences"], rows)}"""
    return Page("differences.html", "Differences", linked(body))


def defects() -> Page:
    found = stock_defects.run_all()
    text = stock_defects.markdown(found)
    backends = ", ".join(stock_defects.BACKENDS[name] for name in found)
    body = f"""<h1>What stock Keras gets wrong</h1>
<p>Each scenario was run when this page was made, with an optimizer of Keras {keras.__version__}
and with
one of this package, on {backends}; <code>python -m integration.stock_defects --all</code> does
it again.
</p>
<div class="wide">{docstrings.markdown(text)}</div>"""
    return Page("defects.html", "What stock Keras gets wrong", body, full=True)


def tf1() -> Page:
    known = {entry.path for entry in names.public()}
    rows = []
    for name, found in keras_tfopt.legacy.names().items():
        path = f"keras_tfopt.legacy.{name}"
        text = found.differs
        rows.append(
            [
                link(path, name) if path in known else f"<code>{name}</code>",
                f"<code>{found.source}</code>",
                f"<code>{found.maps_to}</code>",
                docstrings.markdown(text),
            ]
        )
    body = f"""<h1>Names of TensorFlow 1</h1>
{docstrings.of(keras_tfopt.legacy)}
{table(["name", "of", "maps to", "differs in"], rows)}"""
    return Page("tf1.html", "Names of TensorFlow 1", linked(body))


def of_keras() -> Page:
    rows = []
    for name in keras_tfopt.list_optimizers("keras.*"):
        info = keras_tfopt.info(name)
        rows.append(
            [
                f"<code>{name}</code>",
                docstrings.markdown(info.description),
                docstrings.markdown(info.slots),
                f"{info.bytes_per_parameter:.3g}",
                docstrings.markdown(info.differences),
            ]
        )
    body = f"""<h1>Keras's own optimizers</h1>
<p>As <code>keras_tfopt.info</code> knows those of Keras {keras.__version__}. For all of them a
row gradient
acts as a dense one; their formulas are in Keras's documentation.</p>
{table(["name", "what it is", "slots", "bytes a parameter", "differences"], rows)}"""
    return Page("keras.html", "Keras's own optimizers", linked(body))


# ---- What all pages have -------------------------------------------------------------------------

GROUPS = (
    ("Optimizers", lambda e: _is_optimizer(e.item) and issubclass(e.item, keras_tfopt.Rule)),
    ("Wrappers", lambda e: _is_optimizer(e.item)),
    ("TensorFlow 1", lambda e: e.module == "keras_tfopt.legacy"),
    ("Everything else", lambda e: True),
)


def groups() -> dict[str, list[names.Entry]]:
    """Public names for the list on every page, each in one group."""
    found: dict[str, list[names.Entry]] = {title: [] for title, _ in GROUPS}
    for entry in names.public():
        title = next(title for title, belongs in GROUPS if belongs(entry))
        found[title].append(entry)
    order = sorted(found.items(), key=lambda item: item[0] == "TensorFlow 1")
    return {title: sorted(g, key=lambda e: e.path.lower()) for title, g in order}


def whole(page: Page) -> str:
    """A page with head, links and the list of names."""
    lists = []
    for title, entries in groups().items():
        items = []
        for entry in entries:
            here = ' aria-current="page"' if file_of(entry.path) == page.file else ""
            short = entry.path.removeprefix("keras_tfopt.").removeprefix("legacy.")
            items.append(f'<li><a href="{file_of(entry.path)}"{here}>{html.escape(short)}</a></li>')
        lists.append(f"<h2>{title}</h2>\n<ul>\n" + "\n".join(items) + "\n</ul>")
    title = page.title if page.file == "index.html" else f"{page.title} - keras_tfopt"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="stylesheet" href="style.css">
</head>
<body{' class="full"' if page.full else ""}>
<header><b><a href="index.html">keras_tfopt</a></b>
<a href="digits.html">On one task</a> <a href="differences.html">Differences</a>
<a href="defects.html">Defects of Keras</a> <a href="tf1.html">TensorFlow 1</a>
<a class="jump" href="#names">All names</a></header>
<main>
{page.body}
</main>
<nav id="names" aria-label="All names">
{chr(10).join(lists)}
</nav>
</body>
</html>
"""
